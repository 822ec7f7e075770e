--- Shows a text of `help`. The prompt replaces `show`, to page long texts.
local output = {}

function output.show(text) _G.print(text) end  -- a host may have replaced print

return output
