--- Returns the sorted list of the names in tables.
return function(...)
  local names = {}
  for _, t in ipairs { ... } do
    for name in pairs(t) do names[#names + 1] = name end
  end
  table.sort(names)
  return names
end
