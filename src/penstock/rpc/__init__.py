"""What gRPC speaks: the messages of `control.proto`, for the server and the client. `make proto` writes their code anew."""
