--- A server of a model. A thread of the library reads requests and writes responses; all else runs
--- where `poll` or `run` is called.
local fail = require "redco.fail"
local native = require "redco.native"
local new_batch = require "redco.generation.batch"
local new_job = require "redco.serve.job"
local no_request = require "redco.serve.processes".no_request
local refusals = require "redco.serve.refuse"
local registry = require "redco.registry"
local token_texts = require "redco.serve.answers".token_texts

local refuse = refusals.refuse

local Server = registry.define("Server", [[
Server {port: integer, url: string, name: string}
Answers clients of the OpenAI API. `redco.serve` makes it.
  port: the port at which it listens
  url: the base URL for clients, such as "http://127.0.0.1:8000/v1"
  name: the model's name in the API]], {})

local most_requests_at_once = 64  -- between two tokens
local seconds_to_end = 30

-- The most bytes of the JSON of a request: no prompt that fits has more bytes for each token.
local function body_bytes(max_length) return 64 * 1024 + 64 * max_length end

local function answer_json(request, value)
  request:respond(200, { ["Content-Type"] = "application/json" },
    native.json_encode("answer", value))
end

function Server:model_entry()
  return { id = self.name, object = "model", created = self.started, owned_by = "redco-lua" }
end

--- Raises a refusal if n more answers do not fit.
function Server:check_room(n)
  local n_open, limit = 0, self.max_rows + self.max_queue
  for _, job in ipairs(self.jobs) do n_open = n_open + #job.choices end
  if n > limit then
    refuse(400, { param = "n" }, "the request asks for %d answers; at most %d fit", n, limit)
  end
  if n_open + n > limit then
    refuse(429, { code = "queue_full" }, "the server is busy with %d answers; try again later",
      n_open)
  end
end

function Server:add_job(request, endpoint, body)
  if self.is_ending then refuse(503, {}, "the server is ending") end
  self:check_room(1)  -- before the request is parsed
  local job = new_job(self, request, endpoint, body)
  table.insert(self.jobs, job)
  table.insert(self.new, { endpoint = endpoint, body = body, seed = job.seed })
end

-- Path, method, and a function of the server, the request and its body.
local routes = {
  ["/health"] = { "GET", function(_, request) answer_json(request, { status = "ok" }) end },
  ["/v1/models"] = { "GET", function(self, request)
    answer_json(request, { object = "list", data = { self:model_entry() } })
  end },
  ["/v1/chat/completions"] = { "POST", function(self, request, body)
    self:add_job(request, "chat", body)
  end },
  ["/v1/completions"] = { "POST", function(self, request, body)
    self:add_job(request, "completions", body)
  end },
}

local function check_token(self, request)
  local given = request:header "Authorization":match "^[Bb]earer +(.-) *$"
  if not given or not native.is_same_secret(given, self.token) then
    refuse(401, { code = "invalid_api_key" }, "the request needs the header "
      .. "\"Authorization: Bearer TOKEN\" with the token of this server")
  end
end

function Server:handle(request)
  local method, path, body = request:read()
  local route = routes[path]
  if self.token and path ~= "/health" then check_token(self, request) end
  if path:gsub("%%(%x%x)", function(x) return string.char(tonumber(x, 16)) end)
    == "/v1/models/" .. self.name then
    route = { "GET", function() answer_json(request, self:model_entry()) end }
  end
  if not route then
    refuse(404, { code = "not_found" }, "there is no %s here", path)
  end
  if method ~= route[1] and not (method == "HEAD" and route[1] == "GET") then
    refuse(405, {}, "%s takes %s, not %s", path, route[1], method)
  end
  route[2](self, request, body)
end

-- Calls f(...). An error becomes the argument of `on_refusal`.
function Server:guarded(on_refusal, f, ...)
  local ok, message = refusals.try(f, ...)
  if ok then return message end
  local refusal = refusals.refusal_of(message)
  if refusal.status == 500 and self.is_first then native.notice("serve: " .. refusal.message) end
  on_refusal(refusal)
end

-- Takes the pending requests, and waits up to `seconds` for the first.
function Server:take(seconds)
  for _ = 1, most_requests_at_once do
    local request = self.http:next(seconds)
    if not request then return end
    self:guarded(function(refusal)
      request:respond(refusal.status, refusal:headers(), refusal:json())
    end, self.handle, self, request)
    seconds = 0
  end
end

--- Returns a seed for a request that has none.
function Server:new_seed()
  self.n_seeds = self.n_seeds + 1
  return self.started * 65536 + self.n_seeds
end

function Server:make_batch()
  self.batch = new_batch(self.model, self.params,
    { max_rows = self.max_rows, kept_rows = self.kept_rows, max_length = self.max_length,
      cache_implementation = self.cache_implementation, deployer = self.deployer })
end

-- Calls f(job) for each, and keeps those for which it returns false.
function Server:advance(f)
  local open = {}
  for _, job in ipairs(self.jobs) do
    local is_over = self:guarded(function(refusal) job:fail(refusal) end, f, job)
    if is_over == false then open[#open + 1] = job end
  end
  self.jobs = open
end

function Server:fail_all(refusal)
  self:advance(function(job)
    job:fail(refusal)
    return true
  end)
end

-- Returns the value of the first process on all processes.
function Server:shared(said)
  if not self.deployer then return said end
  return native.json_decode("turn",
    native.text_of_first(self.is_first and native.json_encode("turn", said) or ""))
end

-- Takes requests, waiting up to `seconds` for them, and computes a token of each open answer. All
-- processes do the same in the order of the first process. Returns is_over() of the first process.
function Server:turn(seconds, is_over)
  self.new = {}
  local left = {}
  if self.is_first then
    for i, job in ipairs(self.jobs) do
      if not job.request:is_open() then left[#left + 1] = i end
    end
    self:take(seconds)
  end
  local said = self:shared { new = self.new, left = left, is_over = is_over() }
  if not self.is_first then
    for _, new in ipairs(said.new) do
      table.insert(self.jobs, new_job(self, no_request, new.endpoint, new.body, new.seed))
    end
  end
  for _, i in ipairs(said.left) do self.jobs[i].is_left = true end
  self:step()
  return said.is_over
end

-- One token for each open answer.
function Server:step()
  self:advance(function(job)
    if job.is_left then
      job:cancel()
    elseif not job.batch then
      job:start(self.batch)
    end
    return job.is_left or false
  end)
  if self.batch:is_idle() then return end
  self:guarded(function(refusal)
    self:fail_all(refusal)
    self:make_batch()
  end, self.batch.step, self.batch)
  self:advance(function(job) return job:advance() end)
end

Server.poll = registry.define("Server:poll", [[
poll(self) -> integer
Takes the requests that have come and computes one token of each open answer. Returns the number of
open requests. Call it between the steps of a training run, as in `on_step`: answers then come from
the current parameters. On several processes all call it.]], function(self)
  self.batch:forget()
  self:turn(0, function() return false end)
  return #self.jobs
end)

Server.run = registry.define("Server:run", [[
run(self)
Answers requests until SIGTERM or Ctrl-C, and closes the server. After SIGTERM it takes no more
requests and has 30 seconds to finish the open answers. Ctrl-C cuts the open answers and raises the
error "interrupted". On several processes all call it; it raises an error if one of them is gone.]],
function(self)
  local listener = native.stop_listener()
  local function serve_until(is_over)
    repeat until self:turn(self.batch:is_idle() and 0.1 or 0, is_over)
  end
  local ok, message = pcall(function()
    serve_until(function() return listener:signal() ~= 0 end)
    self.is_ending = true
    local last = os.time() + seconds_to_end
    serve_until(function() return #self.jobs == 0 or os.time() > last end)
  end)
  self:close()
  listener:close()
  if not ok then error(message, 0) end
end)

Server.close = registry.define("Server:close", [[
close(self)
Ends open answers with an error, and frees the port.]], function(self)
  self:fail_all(refusals.end_of_server)
  if self.http then self.http:close() end
end)

-- Listens, and returns the port.
function Server:listen()
  self.http = native.http_server(self.host, self.port, body_bytes(self.max_length))
  if not self.token and not self.http:is_local() then
    self.http:close()
    fail("serve: other machines can connect to %s: give a token, which clients send", self.host)
  end
  return self.http:port()
end

local meta = { __name = "Server", __index = Server }
function meta.__tostring(self) return ("Server {%s}"):format(self.url) end

--- `o` has model, params, tokenizer, host, port, token, name, max_rows, max_queue, max_length,
--- cache_implementation, vocab_size and, on several processes, deployer.
return function(o)
  local self = setmetatable(o, meta)
  self.jobs, self.new, self.started, self.n_seeds = {}, {}, os.time(), 0
  self.is_first = not self.deployer or self.deployer.process_id == 0
  self.texts = token_texts(self.tokenizer)
  self:make_batch()
  local said = {}
  if self.is_first then
    local ok, port = refusals.try(self.listen, self)
    said = ok and { port = port } or { message = tostring(port) }
  end
  said = self:shared(said)
  if said.message then error(said.message, 0) end
  self.port = said.port
  self.url = ("http://%s:%d/v1"):format(self.host:find ":" and "[" .. self.host .. "]" or self.host,
    self.port)
  return self
end
