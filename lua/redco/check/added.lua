--- The checks that the running script added.
return {}
