--- Returns the first names of a list, 4 or as many as `most` says, as a text for messages, sorted:
--- "a, b, c, d and 3 more".
return function(names, most)
  most = most or 4
  table.sort(names)
  local shown = table.concat(names, ", ", 1, math.min(#names, most))
  return #names > most and ("%s and %d more"):format(shown, #names - most) or shown
end
