--- Squares of the patches of an image.
local fail = require "redco.fail"

local squares = {}

--- Returns x [n, rows * columns, size] as [n, squares, side, side, size], where the squares are in
--- the order of their rows and columns, as the patches in each.
function squares.of(x, n_rows, n_columns, side)
  local n, size = x:size(0), x:size(2)
  return x:reshape { n, n_rows / side, side, n_columns / side, side, size }
    :permute { 0, 1, 3, 2, 4, 5 }:flatten(1, 2)
end

--- Returns how many patches a square has on a side: c[key] is one divided by it. An image has
--- n_rows rows and columns of patches.
function squares.side(c, key, n_rows)
  local side = 1 / c[key]
  if side % 1 ~= 0 or n_rows % side ~= 0 then
    fail("%s: %s is %s, which gives no squares of %d x %d patches", c.model_type, key, c[key],
      n_rows, n_rows)
  end
  return side
end

return squares
