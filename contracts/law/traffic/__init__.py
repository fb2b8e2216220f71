"""TRAF: what ranks send each other in a step."""
