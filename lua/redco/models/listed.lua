--- Returns the first names of a list as a text for messages, sorted: "a, b, c, d and 3 more".
return function(names)
  table.sort(names)
  local shown = table.concat(names, ", ", 1, math.min(#names, 4))
  return #names > 4 and ("%s and %d more"):format(shown, #names - 4) or shown
end
