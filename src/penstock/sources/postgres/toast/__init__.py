"""What fills the TOASTed columns that an update did not touch: recent changes of the row, or the server asked again."""
