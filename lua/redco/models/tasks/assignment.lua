--- The cheapest assignment (Kuhn, 1955; Jonker and Volgenant, 1987).

-- Assigns the n <= m rows of costs(i, j) to the columns. Each step finds the cheapest path from a
-- row to a free column over the assigned ones, by costs less prices.
local function assign(n, m, costs)
  local of_row, of_column, row_of, from = {}, {}, {}, {}
  for i = 0, n do of_row[i] = 0 end
  for j = 0, m do of_column[j], row_of[j] = 0, 0 end
  for i = 1, n do
    row_of[0] = i
    local column, least, is_used = 0, {}, {}
    for j = 1, m do least[j] = math.huge end
    repeat
      is_used[column] = true
      local row, step, next_column = row_of[column], math.huge, nil
      for j = 1, m do
        if not is_used[j] then
          local cost = costs(row, j) - of_row[row] - of_column[j]
          if cost < least[j] then least[j], from[j] = cost, column end
          if not next_column or least[j] < step then step, next_column = least[j], j end
        end
      end
      for j = 0, m do
        if is_used[j] then
          of_row[row_of[j]], of_column[j] = of_row[row_of[j]] + step, of_column[j] - step
        else
          least[j] = (least[j] or 0) - step
        end
      end
      column = next_column
    until row_of[column] == 0
    repeat
      local before = from[column]
      row_of[column], column = row_of[before], before
    until column == 0
  end
  local columns = {}
  for j = 1, m do
    if row_of[j] > 0 then columns[row_of[j]] = j end
  end
  return columns
end

--- Returns for each row of a matrix of costs, a list of n lists of m finite numbers, its column,
--- such that no two rows have the same and the sum of the costs is the least. With more rows than
--- columns, rows that have none are nil.
return function(costs, n, m)
  if n <= m then return assign(n, m, function(i, j) return costs[i][j] end) end
  local columns = {}
  for j, i in pairs(assign(m, n, function(j, i) return costs[i][j] end)) do columns[i] = j end
  return columns
end
