--- Asks the server of the Hugging Face Hub.
local fail = require "redco.fail"
local native = require "redco.native"
local places = require "redco.hub.places"

local most_redirects, most_tries = 10, 5

local function origin_of(url) return url:match "^(%a+://[^/]+)" end

-- Advice about an answer, by the server's code for it or else by its status.
local advice = {
  GatedRepo = "access to it must be granted: ask for it on %s, then set HF_TOKEN to a token of "
    .. "yours or run `hf auth login`",
  RepoNotFound = "the server has no such name, or it is private: then set HF_TOKEN to a token that "
    .. "may read it or run `hf auth login` (%s)",
  RevisionNotFound = "the server has the name, but not this revision (%s)",
  EntryNotFound = "the server has the name, but not this file (%s)",
  [401] = "the server asks for a token: set HF_TOKEN or run `hf auth login` (%s)",
  [403] = "the token may not read it: ask for access on %s, or use another token (HF_TOKEN)",
  [404] = "the server has no such name; HF_ENDPOINT names the server (%s)",
  [429] = "the server takes no more requests for now: wait, or set HF_TOKEN (%s)",
}

local function refuse(what, page, reply)
  local said = reply.headers["x-error-message"]
  local text = advice[reply.headers["x-error-code"]] or advice[reply.status]
    or "it may work later (%s)"
  fail("cannot download %s: status %d%s: %s", what, reply.status, said and ", " .. said or "",
    text:format(page))
end

local Server = {}
Server.__index = Server

local function new()
  return setmetatable({
    endpoint = places.endpoint(), token = places.token(), client = native.http_client(),
    certificates = places.certificates(), seconds_to_wait = places.seconds_to_wait(),
  }, Server)
end

-- Sends one request without following redirects. Sends the token to this server only.
function Server:once(url, o)
  local headers = { ["Accept-Encoding"] = "identity", ["User-Agent"] = "redco-lua/"
    .. native.version }
  if self.token and origin_of(url) == origin_of(self.endpoint) then
    headers.Authorization = "Bearer " .. self.token
  end
  return self.client:get { url = url, headers = headers, is_head = o.is_head, file = o.file,
    offset = o.offset, label = o.label, certificates = self.certificates,
    seconds_to_wait = self.seconds_to_wait }
end

-- Follows redirects. A HEAD follows only those within the server; others lead to the file itself.
function Server:follow(url, o)
  for _ = 1, most_redirects do
    local reply = self:once(url, o)
    local is_away = reply.redirect and origin_of(reply.redirect) ~= origin_of(url)
    if not reply.redirect or o.is_head and is_away then return reply end
    url = reply.redirect
  end
  fail("cannot download %s: more than %d redirects", url, most_redirects)
end

local function is_passing(reply)
  return reply.ending == "cut" or reply.status == 429 or reply.status >= 500
end

--- Asks for a URL, again if the answer may be another one a moment later. `what` and `page` are for
--- errors. o: is_head; file, offset and label of a download. `progress()`, or nil, returns a number
--- that has grown if the try was not for nothing. Returns the reply.
function Server:ask(what, page, url, o, progress)
  local n_tries, last = 0, progress and progress()
  while true do
    local reply = self:follow(url, o())
    if reply.ending == "unreachable" then
      fail("cannot download %s: %s does not answer: %s; a network or a proxy (https_proxy) is "
        .. "needed, and HF_ENDPOINT can name a mirror", what, origin_of(url), reply.reason)
    end
    if reply.ending == "unwritten" then return reply end
    if not is_passing(reply) then
      if reply.status >= 400 and reply.status ~= 416 then refuse(what, page, reply) end
      return reply
    end
    local now = progress and progress()
    n_tries = now ~= last and 1 or n_tries + 1
    last = now
    if n_tries >= most_tries then
      if reply.ending ~= "cut" then refuse(what, page, reply) end
      fail("cannot download %s: the connection breaks: %s; what is here is kept, and the next "
        .. "download continues with the rest", what, reply.reason)
    end
    native.pause(0.25 * 2 ^ n_tries)
  end
end

return new
