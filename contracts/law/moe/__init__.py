"""MOE: routing, gates, dispatch, capacity, auxiliary losses, expert bias."""
