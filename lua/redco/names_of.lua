--- Returns the list of a table's keys, in the order of `pairs`.
return function(t)
  local list = {}
  for name in pairs(t) do list[#list + 1] = name end
  return list
end
