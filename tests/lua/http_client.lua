--- A client of HTTP for the specs, on plain sockets, so that it can also misbehave.
local ffi = require "ffi"
local native = require "redco.native"

ffi.cdef [[
struct http_client_address { uint16_t family; uint16_t port; uint8_t host[4]; uint8_t zero[8]; };
struct http_client_poll { int fd; short events; short revents; };
int socket(int, int, int);
int connect(int, const struct http_client_address *, unsigned);
ssize_t send(int, const char *, size_t, int);
ssize_t recv(int, char *, size_t, int);
int poll(struct http_client_poll *, unsigned long, int);
int shutdown(int, int);
int close(int);
]]
local C, no_signal, may_not_wait = ffi.C, 0x4000, 0x40

local Connection = {}
Connection.__index = Connection

local function connect(port)
  local address = ffi.new("struct http_client_address",
    { family = 2, port = bit.rshift(bit.bswap(port), 16) })
  address.host[0], address.host[3] = 127, 1
  local fd = C.socket(2, 1, 0)
  assert(fd >= 0 and C.connect(fd, address, 16) == 0, "cannot connect")
  return setmetatable({ fd = fd, received = "" }, Connection)
end

--- Returns whether all of it was sent.
function Connection:send(text) return C.send(self.fd, text, #text, no_signal) == #text end

local buffer = ffi.new("char[65536]")

--- Appends what has come, after up to `ms` milliseconds. Returns false at the end.
function Connection:receive(ms)
  local waiting = ffi.new("struct http_client_poll[1]", { { fd = self.fd, events = 1 } })
  if C.poll(waiting, 1, ms) <= 0 then return true end
  local n = tonumber(C.recv(self.fd, buffer, 65536, may_not_wait))
  if n <= 0 then return false end
  self.received = self.received .. ffi.string(buffer, n)
  return true
end

function Connection:close()
  if self.fd >= 0 then C.close(self.fd) end
  self.fd = -1
end

local function unchunked(body)
  local parts, at = {}, 1
  while true do
    local first, last, size = body:find("^(%x+)\r\n", at)
    if not first or tonumber(size, 16) == 0 then return table.concat(parts), first ~= nil end
    parts[#parts + 1] = body:sub(last + 1, last + tonumber(size, 16))
    at = last + tonumber(size, 16) + 3
  end
end

--- Returns {status, head, body} of what has been received.
function Connection:response()
  local head, body = self.received:match "^(.-\r\n)\r\n(.*)$"
  assert(head, "no response but: " .. self.received)
  if head:find "chunked" then body = unchunked(body) end
  return { status = tonumber(head:match " (%d+)"), head = head, body = body }
end

--- The text of a request. `o` has method, path, body, a table or text, and headers, a text.
local function request_text(o)
  local body = type(o.body) == "table" and native.json_encode("body", o.body) or o.body or ""
  return ("%s %s HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s")
    :format(o.method or (o.body and "POST" or "GET"), o.path, #body, o.headers or "", body)
end

--- Sends the requests at once; calls step() until all are answered. Returns a list of responses,
--- with the decoded JSON as `json`, and of event streams the list of these as `events`.
local function ask_all(port, requests, step)
  local connections, n_open = {}, #requests
  for i, request in ipairs(requests) do
    connections[i] = connect(port)
    connections[i]:send(request_text(request))
  end
  while n_open > 0 do
    step()
    n_open = 0
    for _, connection in ipairs(connections) do
      if connection.fd >= 0 and not connection:receive(0) then connection:close() end
      if connection.fd >= 0 then n_open = n_open + 1 end
    end
  end
  local responses = {}
  for i, connection in ipairs(connections) do
    local response = connection:response()
    if response.head:find "event%-stream" then
      response.events = {}
      for event in response.body:gmatch "data: ([^\n]*)\n\n" do
        table.insert(response.events, event == "[DONE]" and event
          or native.json_decode("event", event))
      end
    elseif #response.body > 0 then
      response.json = native.json_decode("body", response.body)
    end
    responses[i] = response
  end
  return responses
end

return { connect = connect, request_text = request_text, ask_all = ask_all }
