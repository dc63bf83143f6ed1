"""What the pages of the fleet tell, gathered in a fixed number of queries. The views put it into templates."""
