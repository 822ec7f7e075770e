--- The hosts of two_hosts.sh.
local program = require "program"

local hosts = {}

--- The start of a shell command on host 1 or 2.
function hosts.on(host)
  return ("%s/tests/hosts/on.sh host%d "):format(os.getenv "REDCO_SOURCE", host)
end

--- Ends the spec as skipped where a command is missing.
function hosts.need(...)
  for _, command in ipairs { ... } do
    if os.execute(("command -v %s >/dev/null"):format(command)) ~= 0 then
      io.stderr:write(("skipped: the command %s is missing\n"):format(command))
      program.remove_folder()
      os.exit(77)
    end
  end
end

return hosts
