--- Squares of patches: x [n, rows * columns, size] as [n, squares, side, side, size], where the
--- squares are in the order of their rows and columns, as the patches in each.
return function(x, n_rows, n_columns, side)
  local n, size = x:size(0), x:size(2)
  return x:reshape { n, n_rows / side, side, n_columns / side, side, size }
    :permute { 0, 1, 3, 2, 4, 5 }:flatten(1, 2)
end
