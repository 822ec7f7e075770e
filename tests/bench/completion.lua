-- Milliseconds of what TAB and `?` do at the prompt, the slowest of some lines each. One JSON line.
local clock = require "clock"
local session = require("redco.repl.session").new { width = 80 }

session:run "x = torch.ones{2} params = {} for i = 1, 1000 do params['w' .. i] = x end"

local function slowest(lines, use)
  local result = 0
  for _, line in ipairs(lines) do
    use(line)  -- what is loaded at the first question
    local times = {}
    for i = 1, 11 do
      local start = clock.now()
      use(line)
      times[i] = clock.now() - start
    end
    result = math.max(result, clock.median(times))
  end
  return result * 1000
end

local completion = slowest({ "t", "torch.", "x:", "x:float():", "redco.optim.adamw{ ", "params.",
  "require 'redco.", ("f{ x = { 'a', (1) } } "):rep(1000) .. "tor" },
  function(line) session:complete(line, #line) end)
local help = slowest({ "?torch.matmul", "?x:sum", "?redco.Trainer", "?nothing" },
  function(line) session:run(line) end)
print(('{"name": "completion", "completion_ms": %.2f, "help_ms": %.2f}'):format(completion, help))
