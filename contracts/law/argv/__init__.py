"""ARGV: recipe → the words of a command, and back."""
