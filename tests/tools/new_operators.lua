-- Lists the operators of this program's LibTorch that another program's LibTorch lacks, and that
-- neither a row in engine/sharding/operators nor the generator of random programs names. Run it in
-- the repository's folder:
--   build/NEW/redco-lua tests/tools/new_operators.lua build/release/redco-lua
local torch = require "redco.torch"

local function output(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local names = table.concat(torch.operators(), "\n")
if not arg[1] then return print(names) end

local known = {}
for name in output(("'%s' '%s'"):format(arg[1], arg[0])):gmatch "%S+" do known[name] = true end
assert(next(known), "the other redco-lua lists no operators: " .. arg[1])
local sources = output "cat engine/sharding/operators/*.cpp tests/cluster/programs/*.lua"
for name in sources:gmatch "[%w_]+" do known[name] = true end
for name in names:gmatch "%S+" do
  if not known[name] then print(name) end
end
