--- Raises an error that names the argument unless `value` is an integer from `least` to `most`;
--- without `most` there is no upper limit.
local fail = require "redco.fail"

return function(where, name, value, least, most)
  if type(value) == "number" and value % 1 == 0 and value >= least and value <= (most or value) then
    return
  end
  fail("%s: %s: expected an integer %s, got %s", where, name,
    most and ("from %.0f to %.0f"):format(least, most) or ("of at least %.0f"):format(least),
    value)
end
