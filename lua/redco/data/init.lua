--- Readers of data files, and what prepares images.
local data = { image_processor = require "redco.data.image_processor" }

for name, value in pairs(require "redco.data.readers") do data[name] = value end

return data
