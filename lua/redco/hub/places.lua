--- Where the programs of the Hugging Face Hub keep their files, and what their environment
--- variables say:
--- https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables.
local fail = require "redco.fail"

local places = {}

-- Returns the value of a variable that is set and not empty.
local function variable(name)
  local value = os.getenv(name)
  return value ~= "" and value or nil
end

local function is_true(value)
  return value and ({ ["1"] = true, ON = true, YES = true, TRUE = true })[value:upper()] or false
end

-- Replaces a leading ~, and variables, as Python does.
local function expanded(path)
  path = path:gsub("^~", variable "HOME" or "~")
  local function by_name(name) return os.getenv(name) end
  return (path:gsub("%${([%w_]+)}", by_name):gsub("%$([%w_]+)", by_name):gsub("(.)/+$", "%1"))
end

local function home()
  local cache = variable "XDG_CACHE_HOME" or "~/.cache"
  return expanded(variable "HF_HOME" or cache .. "/huggingface")
end

--- Returns the folder of the cache.
function places.cache()
  local given = variable "HF_HUB_CACHE" or variable "HUGGINGFACE_HUB_CACHE"
  return given and expanded(given) or home() .. "/hub"
end

--- Returns whether a file that is not in the cache is to be downloaded; `asked` is the option of a
--- function. If not, also why: "offline", or nil if nobody has asked for it.
function places.may_download(asked)
  local offline = variable "HF_HUB_OFFLINE" or variable "TRANSFORMERS_OFFLINE"
  if is_true(offline) then return false, "offline" end
  return (asked or asked == nil and offline ~= nil) and true or false
end

--- Returns the server's address.
function places.endpoint()
  local url = (variable "HF_ENDPOINT" or "https://huggingface.co"):gsub("/+$", "")
  if not url:find "^https?://[^/]" then
    fail("HF_ENDPOINT: expected an address that begins with https://, got '%s'", url)
  end
  return url
end

local function first_word(path)
  local file = io.open(path)
  local word = file and (file:read "*a" or ""):match "%S+"
  if file then file:close() end
  return word
end

--- Returns the user's token, or nil.
function places.token()
  local given = variable "HF_TOKEN" or variable "HUGGING_FACE_HUB_TOKEN"
  local token = given and given:match "%S+"
  if token then return token end
  if is_true(variable "HF_HUB_DISABLE_IMPLICIT_TOKEN") then return nil end
  local path = variable "HF_TOKEN_PATH"
  return first_word(path and expanded(path) or home() .. "/token")
end

--- Returns how long to wait for a server, in seconds.
function places.seconds_to_wait()
  local seconds = tonumber(variable "HF_HUB_DOWNLOAD_TIMEOUT" or "")
  return seconds and math.max(1, math.floor(seconds)) or 10
end

--- Returns a file of certificates in place of the system's, as Python's requests and curl take it.
function places.certificates()
  return variable "REQUESTS_CA_BUNDLE" or variable "CURL_CA_BUNDLE" or variable "SSL_CERT_FILE"
end

return places
