--- Returns a tensor of floating-point numbers in 32 bits at least: 16 are too few for
--- log-probabilities.
return function(t)
  if t.dtype == "bfloat16" or t.dtype == "float16" then return t:float() end
  return t
end
