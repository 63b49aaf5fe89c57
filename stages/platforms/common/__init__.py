"""What several platforms share and none owns."""
