-- Pictures of two emoji, uint8 [3, 64, 64]: each ordered pair once in a row and once in a column.
local redco = require "redco"
local torch = redco.torch

local emoji_pairs = {}

--- Returns a data set of { image, first, second, is_row }, shuffled: `first` is left of or above
--- `second`, which are names of `n_emoji` emoji in `folder`.
function emoji_pairs.new(folder, n_emoji, seed)
  local sheet, names, tiles = redco.data.image(folder .. "data/emoji.png"), {}, {}
  local all = sheet:view { 3, 38, 32, 37, 32 }:permute { 1, 3, 0, 2, 4 }:reshape { -1, 3, 32, 32 }
  for i, name in redco.data.lines(folder .. "data/captions.txt"):ipairs() do
    if #names < n_emoji and i % 3 == 0 and not name:find " " then
      names[#names + 1], tiles[#tiles + 1] = name, all[i - 1]
    end
  end
  local n = #names
  local order = torch.randperm(2 * n * (n - 1), { generator = torch.Generator(seed) })
  return redco.data.dataset(order:numel(), function(i)
    local number = order[i - 1]:item()
    local pair, is_row = math.floor(number / 2), number % 2 == 0
    local first, second = math.floor(pair / (n - 1)) + 1, pair % (n - 1) + 1
    if second >= first then second = second + 1 end
    -- Across the row or column, each is moved by 0 or 16 pixels.
    local image = torch.full({ 3, 64, 64 }, 255, { dtype = "uint8" })
    for k, tile in ipairs { tiles[first], tiles[second] } do
      local along, across = 32 * (k - 1), math.floor(number / (2 * k)) % 2 * 16
      local x, y = is_row and along or across, is_row and across or along
      image:narrow(1, y, 32):narrow(2, x, 32):copy_(tile)
    end
    return { image = image, first = names[first], second = names[second], is_row = is_row,
      number = number }
  end)
end

return emoji_pairs
