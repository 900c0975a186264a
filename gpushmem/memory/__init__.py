"""The symmetric heap and the arrays in it."""
