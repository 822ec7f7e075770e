-- Names of the Hugging Face Hub: in the cache, and downloaded from a server that is not the Hub.
local ffi = require "ffi"
local program = require "program"
local redco = require "redco"
local testing = require "testing"

local test, expect_equal, expect_has = testing.test, testing.expect_equal, program.expect_has
local source = os.getenv "REDCO_SOURCE"
local commit = ("c0ffee"):rep(6) .. "c0ff"

if os.execute "python3 -c '' 2>/dev/null" ~= 0 then
  print "skipped: there is no python3"
  os.exit(77)
end

local function shell(command)
  local code, out, err = program.shell(command)
  assert(code == 0, err)
  return out
end

-- The repositories of the server: the same small model with all faults, adapters, and data.
shell(([[
cases='%s/tests/cases'
mkdir -p root/models/org root/datasets/org
cp -r "$cases/llama" root/models/org/plain
for fault in gated private broken cut wrong busy slow whole moved circle; do
  cp -r root/models/org/plain root/models/org/it-$fault
done
cp -r root/models/org/plain root/models/org/bins
mv root/models/org/bins/model.safetensors root/models/org/bins/pytorch_model.bin
cp "$cases/lora_llama/adapter_config.json" "$cases/lora_llama/adapter_model.safetensors" \
  -t "$(mkdir -p root/models/org/adapters && echo root/models/org/adapters)"
sed -i 's|"base_model_name_or_path": [^,]*|"base_model_name_or_path": "org/plain"|' \
  root/models/org/adapters/adapter_config.json
set="root/datasets/org/rows"; mkdir -p $set/data $set/other
rows='%s/tests/lua/parquet_cases'
for i in 0 1; do cp "$rows/plain.parquet" $set/data/train-0000$i-of-00002.parquet; done
cp "$rows/images.parquet" $set/data/test-00000-of-00001.parquet
printf '{"a": 1}\n{"a": 2}\n' >$set/other/some.jsonl
cat >$set/README.md <<'END'
---
license: mit
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: "data/test-*"
- config_name: other
  data_files:
  - split: dev
    path:
    - other/some.jsonl
---
# Rows
END
set="root/datasets/org/bare"; mkdir -p $set
printf 'one\n' >$set/train.txt; printf 'two\nthree\n' >$set/test.txt
timeout 600 python3 '%s/tests/program/fake_hub.py' root log >server.err 2>&1 &
echo $! >pid]]):format(source, source, source))

local function contents(name)
  local file = io.open(program.folder .. "/" .. name)
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text
end

local function awaited(name, pattern)
  for _ = 1, 1200 do
    local found = contents(name):match(pattern)
    if found then return found end
    os.execute "sleep 0.05"
  end
  error(("no %s in %s: %s"):format(pattern, name, contents "server.err"))
end

local endpoint = awaited("log", "ready (%S+)")

-- The requests since the last call.
local n_seen = 0
local function requests()
  local text = contents "log"
  local new = text:sub(n_seen + 1)
  n_seen = #text
  return new
end
requests()

local function count(text, pattern) return select(2, text:gsub(pattern, "")) end

ffi.cdef [[
int setenv(const char*, const char*, int);
int unsetenv(const char*);
]]

-- Sets environment variables: a separate cache for each test, and others by name.
local function use(cache, variables)
  local all = { HF_HOME = program.folder .. "/" .. cache, HF_ENDPOINT = endpoint, no_proxy = "*",
    HF_HUB_DOWNLOAD_TIMEOUT = "60" }
  for name, value in pairs(variables or {}) do all[name] = value end
  for _, name in ipairs { "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE", "https_proxy" } do
    if not all[name] then ffi.C.unsetenv(name) end
  end
  for name, value in pairs(all) do ffi.C.setenv(name, value, 1) end
end

local folder = source .. "/tests/cases/llama"
local expected = redco.models.from_pretrained(folder).params

local function expect_opens(name, options)
  local params = redco.models.from_pretrained(name, options).params
  assert(redco.torch.equal(params["lm_head.weight"], expected["lm_head.weight"]))
end

local function expect_fails(f, ...)
  local ok, message = pcall(f)
  assert(not ok, "there was no error")
  expect_has(message, ...)
end

local function expect_refused(name, options, ...)
  expect_fails(function() redco.models.from_pretrained(name, options) end, ...)
end

local fetch = { download = true }

test("a name is downloaded if that is asked for, and then found without the network", function()
  use "first"
  expect_refused("org/plain", nil, "no file or folder org/plain here", "/first/hub", "--download")
  use("first", { HF_HUB_OFFLINE = "1" })
  expect_refused("org/plain", fetch, "HF_HUB_OFFLINE")
  expect_equal(requests(), "")
  use("first", { HF_TOKEN = "right" })
  expect_opens("org/plain", fetch)
  local asked = requests()
  expect_has(asked, "hub GET /org/plain/resolve/" .. commit .. "/tokenizer.json - Bearer right",
    "files GET /models/org/plain/model.safetensors - -")
  assert(not asked:find "/expected", asked)
  assert(not asked:find "files [^\n]*Bearer", "the token went to another host")
  use("first", { HF_HUB_OFFLINE = "1" })
  expect_opens("org/plain", fetch)
  expect_equal(#redco.Tokenizer.from_pretrained "org/plain",
    #redco.Tokenizer.from_pretrained(folder))
  use "first"
  expect_opens "org/plain"
  expect_opens("org/plain", fetch)
  expect_opens("org/plain@" .. commit)
  expect_equal(requests(), "")
  local cache = "first/hub/models--org--plain/"
  expect_equal(contents(cache .. "refs/main"), commit)
  expect_has(shell("readlink " .. cache .. "snapshots/*/model.safetensors"), "../../blobs/")
  local files = shell("find first")
  assert(not files:find "incomplete" and not files:find "%.new", files)
end)

test("only the files that a function reads are fetched, of the given revision", function()
  use("second", { HF_HUB_OFFLINE = "0" })
  redco.Tokenizer.from_pretrained("org/plain", { revision = "v1" })
  assert(not requests():find "model.safetensors")
  redco.Tokenizer.from_pretrained "org/plain@v1"
  redco.models.from_config "org/plain@v1"
  expect_equal(requests(), "")
  use "second"
  expect_refused("org/plain@v1", nil, "has no model.safetensors", "--download")
  expect_fails(function() redco.Tokenizer.from_pretrained "org/plain" end, "org/plain")
  expect_fails(function() redco.Tokenizer.from_pretrained("org/plain", { revision = "../x" }) end,
    "revision")
end)

test("weights that are there only in PyTorch's form, and adapters", function()
  use "third"
  expect_opens("org/bins", fetch)
  expect_has(requests(), "files GET /models/org/bins/pytorch_model.bin")
  ffi.C.setenv("HF_HUB_OFFLINE", "0", 1)
  redco.lora.from_pretrained("org/adapters", expected)
  expect_has(requests(), "files GET /models/org/adapters/adapter_model.safetensors")
end)

test("a broken connection goes on where it broke, a busy server is asked again", function()
  use "fourth"
  expect_opens("org/it-broken", fetch)
  expect_equal(count(requests(),
    "files GET /models/org/it%-broken/model.safetensors bytes=%d+%-"), 2)
  expect_opens("org/it-busy", fetch)
  expect_opens("org/it-moved", fetch)
  expect_refused("org/it-circle", fetch, "redirects")
  requests()
end)

test("a connection that always breaks is an error, and what came is kept", function()
  use "fifth"
  expect_refused("org/it-cut", fetch, "model.safetensors of org/it-cut", "is kept")
  expect_has(shell "ls fifth/hub/models--org--it-cut/blobs", ".incomplete")
  assert(not shell("find fifth"):find "snapshots")
  requests()
end)

test("a file with another checksum is not used, also as the rest of a file", function()
  use "sixth"
  expect_refused("org/it-wrong", fetch, "checksum", "try again")
  local files = shell "find sixth"
  assert(not files:find "incomplete" and not files:find "snapshots", files)
  -- The part that is there is damaged: the file is fetched whole.
  shell [[
    name=$(basename $(readlink first/hub/models--org--plain/snapshots/*/model.safetensors))
    for repo in it-whole plain; do
      mkdir -p seventh/hub/models--org--$repo/blobs
      echo no >seventh/hub/models--org--$repo/blobs/$name.incomplete
    done]]
  use "seventh"
  expect_opens("org/plain", fetch)
  expect_opens("org/it-whole", fetch)
  requests()
end)

test("errors name what to do", function()
  use "ninth"
  expect_refused("org/nothing", fetch, "no such name", "HF_TOKEN")
  expect_refused("org/it-gated", fetch, "Access is restricted",
    "ask for it on " .. endpoint .. "/org/it-gated", "HF_TOKEN")
  expect_refused("org/it-private", fetch, "private")
  shell "mkdir -p ninth; echo right >ninth/token"
  expect_opens("org/it-private", fetch)
  expect_opens("org/it-gated", fetch)
  expect_refused("org/plain@other", fetch, "not this revision")
  expect_refused("org/plain/nofile.gguf", fetch, "has no nofile.gguf")
  use("ninth", { HF_ENDPOINT = "http://127.0.0.1:9" })
  expect_refused("org/new", fetch, "does not answer", "HF_ENDPOINT")
  use("ninth", { HF_ENDPOINT = "https://hub.invalid", https_proxy = "http://127.0.0.1:9",
    no_proxy = "" })
  expect_refused("org/new", fetch, "does not answer", "proxy")
  use("ninth", { HF_ENDPOINT = "files" })
  expect_refused("org/new", fetch, "HF_ENDPOINT", "https://")
  use("ninth", { HF_HUB_CACHE = "/proc/nowhere" })
  expect_refused("org/new", fetch, "cannot make the folder", "HF_HUB_CACHE")
  requests()
end)

test("data sets by name, split and configuration", function()
  use "data"
  local data = redco.data
  local n = #data.parquet(source .. "/tests/lua/parquet_cases/plain.parquet")
  expect_equal(#data.parquet("org/rows", fetch), 2 * n)
  local asked = requests()
  expect_has(asked, "train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "README.md")
  assert(not asked:find "files [^\n]*test%-", asked)
  expect_equal(#data.parquet "org/rows", 2 * n)
  expect_equal(requests(), "")
  data.parquet("org/rows", { split = "test", download = true })
  expect_has(requests(), "test-00000")
  expect_equal(#data.jsonl("org/rows", { name = "other", split = "dev", download = true }), 2)
  expect_equal(data.jsonl("org/rows/other/some.jsonl")[2].a, 2)
  expect_equal(#data.lines("org/bare", fetch), 1)
  expect_equal(#data.lines("org/bare", { split = "test", download = true }), 2)
  expect_equal(data.lines(program.folder .. "/root/datasets/org/bare")[1], "one")
  local function refused(options, ...)
    expect_fails(function() data.parquet("org/rows", options) end, ...)
  end
  refused({ split = "dev", download = true }, "split 'dev'", "test, train")
  refused({ name = "more", download = true }, "configuration 'more'", "default, other")
  expect_fails(function() data.jsonl "org/nofile.jsonl" end, "org/nofile.jsonl")
  expect_fails(function() data.jsonl "org/none" end, "no data set org/none")
  requests()
end)

-- ---- the program ----

local function generate(name)
  return ('"$REDCO_LUA" generate %s x --max-new-tokens=1 </dev/null'):format(name)
end

test("--download, before a command and behind it; a folder of that name wins", function()
  use "tenth"
  shell("mkdir org; ln -s '" .. folder .. "' org/plain")
  shell(generate "org/plain --download")
  expect_equal(requests(), "")
  shell "rm -r org"
  shell(generate "org/plain --download")
  expect_has(requests(), "model.safetensors")
  shell [["$REDCO_LUA" --download -e 'require("redco").Tokenizer.from_pretrained "org/plain@v1"']]
  assert(requests() ~= "")
  shell(generate "--download org/adapters")
  expect_has(requests(), "adapter_model.safetensors")
end)

test("a download that is killed goes on later; of two processes one downloads", function()
  use "eighth"
  shell(generate "--download org/it-slow" .. " & pid=$!; until grep -q 'files GET.*it-slow' log; "
    .. "do sleep 0.1; done; sleep 1; kill -KILL $pid; wait $pid; true")
  requests()
  shell(("%s & %s && wait $!"):format(generate "--download org/it-slow",
    generate "--download org/it-slow"))
  local asked = requests()
  expect_equal(count(asked, "files GET /models/org/it%-slow/model.safetensors bytes="), 1)
  expect_equal(count(asked, "files GET"), 1)
  expect_equal(count(asked, "hub GET /api/"), 1)
end)

test("a folder that takes no more bytes is an error, and what came is kept", function()
  use "eleventh"
  local code, _, err = program.shell("trap '' XFSZ; ulimit -f 256; "
    .. generate "--download org/plain")
  expect_equal(code, 1)
  expect_has(err, "cannot write", "is kept")
  requests()
  expect_opens("org/plain", fetch)
  expect_has(requests(), "model.safetensors bytes=")
end)

shell "kill $(cat pid)"
program.remove_folder()
testing.finish()
