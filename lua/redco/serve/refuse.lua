--- Errors of the API: what is wrong with a request, as the OpenAI clients expect it.
local formatted = require "redco.formatted"
local native = require "redco.native"

local Refusal = {}
Refusal.__index = Refusal

local types = { [401] = "authentication_error", [429] = "rate_limit_error", [503] = "server_error",
  [500] = "server_error" }

--- The JSON text of the refusal.
function Refusal:json()
  local function encoded(message)
    return native.json_encode("error", { error = {
      message = message, type = types[self.status] or "invalid_request_error",
      param = self.param or native.null, code = self.code or native.null,
    } })
  end
  local ok, json = pcall(encoded, self.message)
  -- It may quote bytes of the request that are not UTF-8.
  return ok and json or encoded((self.message:gsub("[^\32-\126]", "?")))
end

--- The headers of HTTP for it.
function Refusal:headers()
  local headers = { ["Content-Type"] = "application/json" }
  if self.status == 401 then headers["WWW-Authenticate"] = "Bearer" end
  if self.status == 429 or self.status == 503 then headers["Retry-After"] = "2" end
  return headers
end

--- Raises a refusal: `status` is that of HTTP, `facts` has `param`, the name of the parameter, and
--- `code`, a word for programs; both may be missing.
local function refuse(status, facts, message, ...)
  error(setmetatable({
    status = status, param = facts.param, code = facts.code,
    message = formatted(message, ...),
  }, Refusal), 0)
end

--- Returns the refusal that is `message`, an error, or one that stands for any other error.
local function refusal_of(message)
  if getmetatable(message) == Refusal then return message end
  return setmetatable({ status = 500, message = tostring(message) }, Refusal)
end

--- For answers that are open when the server ends.
local end_of_server = setmetatable({ status = 503, message = "the server ended" }, Refusal)

--- Calls f(...) as pcall does, but Ctrl-C passes.
local function try(f, ...)
  local ok, message = pcall(f, ...)
  if not ok and type(message) == "string" and message:find "interrupted$" then error(message, 0) end
  return ok, message
end

return { refuse = refuse, refusal_of = refusal_of, end_of_server = end_of_server, try = try }
