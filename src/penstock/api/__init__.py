"""The face for programs: REST over the service layer. It decides nothing."""
