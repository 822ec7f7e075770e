--- Downloads files into the cache of huggingface_hub, in its layout: blobs/ETAG are the contents,
--- snapshots/COMMIT/NAME are links to them, refs/REVISION has the commit, .locks are its locks.
local fail = require "redco.fail"
local native = require "redco.native"
local new_server = require "redco.hub.server"

local function encoded(text, kept)
  return (text:gsub("[^%w_.~-" .. (kept or "") .. "]", function(c)
    return ("%%%02X"):format(c:byte())
  end))
end

local function make_folder_of(path) native.make_folders((path:gsub("/[^/]*$", ""))) end

local function with_lock(path, f, ...)
  make_folder_of(path)
  local lock = native.waiting_lock(path)
  local function release(ok, ...)
    lock:release()
    if not ok then error((...), 0) end
    return ...
  end
  return release(pcall(f, ...))
end

local function write_text(path, text)
  make_folder_of(path)
  local file, message = io.open(path .. ".new", "wb")
  if not file then fail("cannot write: %s", message) end
  local ok, reason = file:write(text)
  file:close()
  if ok then ok, reason = os.rename(path .. ".new", path) end
  if not ok then fail("cannot write %s: %s", path, reason) end
end

local function in_words(bytes)
  if bytes >= 1e9 then return ("%.1f GB"):format(bytes / 1e9) end
  return ("%.0f MB"):format(bytes / 1e6)
end

-- The name of a blob: a digest as 40 or 64 hexadecimal digits, or the ETag of another server.
local function blob_name(what, headers)
  local etag = headers["x-linked-etag"] or headers.etag
  local name = etag and etag:gsub("^W/", ""):gsub('"', "")
  if not name or not name:find "^[%w][%w_-]*$" then
    fail("cannot download %s: the server gives no ETag: HF_ENDPOINT names no server of the Hub",
      what)
  end
  return name
end

local Download = {}
Download.__index = Download

function Download:what(name) return ("%s of %s"):format(name, self.repo.id) end

function Download:ask(what, url, o, progress)
  return self.server:ask(what, self.page, url, o, progress)
end

function Download:no_space(what, needed)
  fail("cannot download %s: the disk of %s has no room for it%s: free some, or set HF_HUB_CACHE to "
    .. "a folder on another disk", what, self.folder,
    needed and (" (%s more)"):format(in_words(needed)) or "")
end

-- Fetches the part of the file that `path` lacks. Returns why the file cannot be used, or nil.
function Download:fetch(what, url, path, size, name)
  local function present() return native.file_size(path) or 0 end
  if size and present() > size then os.remove(path) end
  if size and size - present() > native.free_bytes(self.folder) then
    self:no_space(what, size - present())
  end
  if size and size - present() > 2e7 then
    io.stderr:write(("downloading %s (%s)\n"):format(what, in_words(size)))
  end
  if present() == 0 or present() ~= size then
    local reply = self:ask(what, url, function()
      return { file = path, offset = present(), label = what }
    end, present)
    if reply.ending == "unwritten" then
      if reply.reason:find "space" or reply.reason:find "quota" then self:no_space(what) end
      fail("cannot download %s: cannot write %s: %s; what is here is kept", what, path,
        reply.reason)
    end
    if reply.status == 416 then return "the server has no rest of it" end
  end
  if size and present() ~= size then
    return ("it has %.0f bytes, expected %.0f"):format(present(), size)
  end
  local kind = #name == 64 and "sha256" or #name == 40 and "git"
  if name:find "%X" or not kind then return end
  local digest = native.digest_of_file(path, kind)
  if digest ~= name then return ("its checksum is %s, expected %s"):format(digest, name) end
end

-- Returns the path of the content of a file.
function Download:blob(file)
  if self.blobs[file] then return self.blobs[file] end
  local what, repo = self:what(file), self.repo
  local url = ("%s/%s%s/resolve/%s/%s"):format(self.server.endpoint,
    repo.is_dataset and "datasets/" or "", repo.id, self.commit, encoded(file, "/"))
  local headers = self:ask(what, url, function() return { is_head = true } end).headers
  local name = blob_name(what, headers)
  local size = tonumber(headers["x-linked-size"] or headers["content-length"])
  local path = self.folder .. "/blobs/" .. name
  if not native.file_exists(path) then
    with_lock(("%s/%s.lock"):format(self.locks, name), function()
      if native.file_exists(path) then return end
      local part = path .. ".incomplete"
      local had_part = native.file_exists(part)
      local reason = self:fetch(what, url, part, size, name)
      if reason then os.remove(part) end
      -- The part of a file that another program left may be damaged: fetch all of it.
      if reason and had_part then reason = self:fetch(what, url, part, size, name) end
      if reason then
        os.remove(part)
        fail("cannot download %s: %s: the file was removed; try again, and if it stays so, the "
          .. "server or a proxy changes it", what, reason)
      end
      os.rename(part, path)
    end)
  end
  self.blobs[file] = path
  return path
end

-- Returns the repository's files: `names`, `has(name)`, and `text(name)`, which downloads the file.
function Download:source()
  local repo = self.repo
  local url = ("%s/api/%s/%s/revision/%s"):format(self.server.endpoint,
    repo.is_dataset and "datasets" or "models", repo.id, encoded(repo.revision))
  local what = repo.id .. (repo.revision ~= "main" and "@" .. repo.revision or "")
  local body = self:ask(what, url, function() return {} end).body
  local ok, info = pcall(native.json_decode, url, body)
  local commit = ok and type(info) == "table" and info.sha
  if type(commit) ~= "string" or not commit:find "^%x+$" then
    fail("cannot download %s: %s answers with something else than a list of files: HF_ENDPOINT "
      .. "names no server of the Hub, or a proxy wants a login", what, url)
  end
  self.commit = commit
  local names, is_there = {}, {}
  for _, sibling in ipairs(info.siblings or {}) do
    local name = sibling.rfilename
    -- A name must not lead out of the folder.
    if type(name) == "string" and not ("/" .. name .. "/"):find "/%.*/" then
      names[#names + 1], is_there[name] = name, true
    end
  end
  return {
    names = names, has = function(name) return is_there[name] or false end,
    text = function(name)
      local file = native.byte_file(self:blob(name), "a file")
      return file:bytes(0, #file)
    end,
  }
end

-- Links all files into their snapshot at the end, so that nobody takes a part of them for all.
function Download:link()
  local snapshot = ("%s/snapshots/%s"):format(self.folder, self.commit)
  for name, content in pairs(self.blobs) do
    local path = snapshot .. "/" .. name
    local _, depth = name:gsub("/", "")
    if not native.file_exists(path) then
      make_folder_of(path)
      native.make_link(("../"):rep(depth + 2) .. "blobs/" .. content:match "[^/]*$", path)
    end
  end
  if self.repo.revision ~= self.commit then
    write_text(("%s/refs/%s"):format(self.folder, self.repo.revision), self.commit)
  end
end

--- Downloads what `need` asks for: need(source) -> list of names, or nil and the one that is
--- missing. `repo` has id, revision and is_dataset; `folder` is its folder in the cache. One
--- process at a time downloads; `is_done()` says that another has done it meanwhile.
return function(repo, folder, need, is_done)
  local cache, own = folder:match "^(.*)/([^/]*)$"
  local self = setmetatable({ repo = repo, folder = folder, blobs = {},
    locks = ("%s/.locks/%s"):format(cache, own) }, Download)
  local ok, reason = pcall(native.make_folders, self.locks)
  if not ok then fail("%s; HF_HUB_CACHE can name another folder", reason) end
  with_lock(self.locks .. "/redco.lock", function()
    if is_done() then return end
    self.server = new_server()
    self.page = ("%s/%s%s"):format(self.server.endpoint, repo.is_dataset and "datasets/" or "",
      repo.id)
    native.make_folders(folder .. "/blobs")
    local names, missing = need(self:source())
    if not names then
      fail("cannot download %s: it has no %s; its files are on %s", repo.id, missing, self.page)
    end
    for _, name in ipairs(names) do self:blob(name) end
    self:link()
  end)
end
