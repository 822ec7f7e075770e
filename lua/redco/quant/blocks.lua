--- Makes blocks of int8, int4, fp8, nf4 and fp4 from their parts.
local fail = require "redco.fail"
local torch = require "redco.torch"

local blocks = {}

--- The elements of a block. Groups that have a scale are multiples.
blocks.size = 64

--- Returns the bytes of a tensor's elements: [..., bytes of an element].
function blocks.bytes_of(t)
  local shape = t.shape
  shape[#shape + 1] = -1
  return t:contiguous():view "uint8":view(shape)
end

--- Joins blocks: scales [out, n], zeros [out, n] or nil, numbers [out, n, bytes].
function blocks.joined(scales, zeros, numbers)
  local parts = { blocks.bytes_of(scales:float()), numbers }
  if zeros then table.insert(parts, 2, zeros:to "uint8":unsqueeze(-1)) end
  return torch.cat(parts, -1)
end

--- Repeats what groups of inputs have, [out, groups], for each block.
function blocks.for_blocks(t, n_blocks, where)
  if n_blocks % t:size(1) ~= 0 then
    fail("%s: %d groups of %d inputs are not read, only groups that are multiples of %d", where,
      t:size(1), n_blocks * blocks.size, blocks.size)
  end
  return t:repeat_interleave(n_blocks / t:size(1), 1)
end

--- Returns the number of blocks in rows of `n_in` numbers.
function blocks.count(n_in, where)
  if n_in % blocks.size ~= 0 then
    fail("%s: rows of %d numbers are not read, only multiples of %d", where, n_in, blocks.size)
  end
  return n_in / blocks.size
end

--- Returns blocks of numbers of 4 bits in bytes [out, in], with scales and zeros [out, groups].
function blocks.of_nibbles(q, zeros, scales, where)
  local n = blocks.count(q:size(1), where)
  local pairs = q:contiguous():view { q:size(0), n, blocks.size / 2, 2 }
  local packed = pairs:select(-1, 0):bitwise_or(pairs:select(-1, 1):bitwise_left_shift(4))
  return blocks.joined(blocks.for_blocks(scales, n, where), blocks.for_blocks(zeros, n, where),
    packed)
end

return blocks
