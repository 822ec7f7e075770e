--- Calls f(...) as pcall does, but lets an interrupt end the program.
return function(f, ...)
  local results = { pcall(f, ...) }
  if not results[1] and tostring(results[2]):find "interrupted$" then error(results[2], 0) end
  return unpack(results, 1, 4)
end
