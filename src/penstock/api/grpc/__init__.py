"""The face for programs over gRPC: the same service layer as REST, the same roles, limits and errors."""
