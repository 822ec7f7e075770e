-- Tar archives of examples, and streams.
local redco = require "redco"
local testing = require "testing"

local data = redco.data
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local folder = testing.folder()
local where = "tar_spec.lua:"

--- A header as POSIX describes it, with its checksum.
local function header(name, size, kind, prefix)
  local function field(text, length) return text .. ("\0"):rep(length - #text) end
  local before = field(name, 100) .. ("0000644\0"):rep(3) .. ("%011o\0"):format(size)
    .. ("0"):rep(11) .. "\0"
  local after = (kind or "0") .. field("", 100) .. "ustar\00000" .. field("", 80)
    .. field(prefix or "", 155) .. field("", 12)
  local sum = 8 * 32
  for _, text in ipairs { before, after } do
    for i = 1, #text do sum = sum + text:byte(i) end
  end
  return before .. ("%06o\0 "):format(sum) .. after
end

local function file(name, text, kind, prefix)
  return header(name, #text, kind, prefix) .. text .. ("\0"):rep(-#text % 512)
end

local finish = ("\0"):rep(1024)

local function archive(...)
  local path = folder .. "/shard.tar"
  testing.write(path, table.concat { ... } .. finish)
  return path
end

test("files with one key are an example, decoded by their endings", function()
  local npy = data.read "numpy_cases/matrix.npy"
  local png = data.read "image_cases/rgb.png"
  local path = archive(file("./", "", "5"), file("a/01.png", png), file("a/01.cls", "7\n"),
    file("a/01.txt", "seven"), file("a/01.seg.png", png), file("a/02.json", '{"x": [1, 2]}'),
    file("a/02.npy", npy), file("a/02.bin", ""))
  local set = data.tar(path)
  expect_equal(#set, 2)
  local one, two = set[1], set[2]
  expect_equal(one.__key__ .. " " .. one.cls .. " " .. one.txt, "a/01 7 seven")
  assert(redco.torch.equal(one.png, data.image "image_cases/rgb.png"))
  assert(redco.torch.equal(one["seg.png"], one.png))
  expect_equal(two.json.x[2] .. " " .. #two.bin .. " " .. two.npy:sum():item(), "2 0 15")
  expect_equal(set[3], nil)
  local raw = data.tar(path, { decode = false })[1]
  expect_equal(raw.cls, "7\n")
  expect_equal(raw.png, png)
  expect_equal(#data.tar { path, path }, 4)
  assert(os.execute("gzip -k " .. path) == 0)
  expect_equal(data.tar(path .. ".gz")[2].json.x[1], 1)
end)

test("hidden files, as macOS adds them to archives, are no examples", function()
  local set = data.tar(archive(file("./._1.txt", "x"), file("./1.txt", "one"),
    file("a.b/._2.txt", "x"), file("a.b/2.txt", "two"), file(".DS_Store", "x")))
  expect_equal(#set, 2)
  expect_equal(set[1].__key__ .. " " .. set[1].txt, "./1 one")
  expect_equal(set[2].__key__ .. " " .. set[2].txt, "a.b/2 two")
end)

test("long names: of POSIX, pax and GNU", function()
  local long = ("d"):rep(150)
  local pax = ("%d path=%s/p.txt\n"):format(3 + 1 + 5 + 150 + 7, long)
  local set = data.tar(archive(file("u.txt", "one", "0", long), file("x", pax, "x"),
    file("short.txt", "two"), file("././@LongLink", long .. "/g.txt\0", "L"),
    file("cut.txt", "three")))
  expect_equal(#set, 3)
  expect_equal(set[1].__key__ .. set[1].txt, long .. "/uone")
  expect_equal(set[2].__key__ .. set[2].txt, long .. "/ptwo")
  expect_equal(set[3].__key__ .. set[3].txt, long .. "/gthree")
end)

test("an archive that the program tar writes", function()
  testing.write(folder .. "/k1.txt", "first")
  testing.write(folder .. "/k2.txt", "second")
  assert(os.execute(("cd %s && tar cf made.tar k1.txt k2.txt"):format(folder)) == 0)
  local set = data.tar(folder .. "/made.tar")
  expect_equal(#set .. set[1].txt .. set[2].txt, "2firstsecond")
end)

test("archives that are cut short or damaged are errors", function()
  local path = archive(file("a.txt", ("x"):rep(700)), file("b.txt", "y"))
  local whole = data.read(path)
  for n = 1, #whole - 1025, 97 do
    testing.write(path, whole:sub(1, n))
    expect_error(function() data.tar(path) end, where, path)
  end
  testing.write(path, "")
  expect_error(function() data.tar(path) end, where, path)
  for i = 1, 512 do  -- each byte of a header
    testing.write(path, whole:sub(1, i - 1) .. "\1" .. whole:sub(i + 1))
    expect_error(function() data.tar(path) end, where, path, "no tar header at byte 0")
  end
  testing.write(path, "b" .. whole:sub(2))
  expect_error(function() data.tar(path) end, where, path, "no tar header at byte 0")
  expect_error(function() data.tar(archive(file("a.txt", "x"), file("a.txt", "y"))) end, where,
    "two files", ".txt")
  expect_error(function() data.tar(archive(file("a.txt", "", "2"))) end, where, "type '2'")
  expect_error(function() data.tar(archive(file("x", "9 path=\n", "x"))) end, where, "pax")
  expect_error(function() data.tar(folder .. "/none.tar") end, where, "No such file")
  expect_error(function() data.tar(folder) end, where, "a tar archive")
  expect_error(function() data.tar(3) end, where, "number")
  expect_error(function() return data.tar(archive(file("a.cls", "cat")))[1] end, where, "a.cls",
    "cat")
  expect_error(function() return data.tar(archive(file("a.npy", "cat")))[1] end, where, "a.npy")
end)

-- ---- streams ----

local function counter(n, opened)
  return function()
    if opened then opened[#opened + 1] = true end
    local i = 0
    return function()
      i = i + 1
      if i <= n then return i end
    end
  end
end

local function words(list) return table.concat(list, " ") end

test("a stream is cut into chunks and starts again", function()
  local opened = {}
  local chunk = data.stream(counter(5, opened), { chunk_size = 3 })
  expect_equal(words(chunk(0)), "1 2 3")
  expect_equal(words(chunk(1)), "4 5 1")
  expect_equal(words(chunk(2)), "2 3 4")
  expect_equal(#opened, 2)
  expect_equal(words(chunk(2)), "2 3 4")  -- as evaluated again
  -- A resumed run begins later.
  expect_equal(words(data.stream(counter(5), { chunk_size = 3 })(2)), "2 3 4")
end)

test("a stream without cycle ends", function()
  local chunk = data.stream(counter(5), { chunk_size = 3, cycle = false })
  expect_equal(words(chunk(0)) .. ", " .. words(chunk(1)), "1 2 3, 4 5")
  expect_error(function() chunk(2) end, where, "ended after 5 examples", "epoch 2")
  expect_equal(words(chunk(0)), "1 2 3")
end)

test("wrong streams are errors", function()
  expect_error(function() data.stream(counter(0), { chunk_size = 3 })(0) end, where, "no examples")
  expect_error(function() data.stream(counter(3), { chunk_size = 0 }) end, where, "chunk_size")
  expect_error(function() data.stream(counter(3)) end, where, "chunk_size")
  expect_error(function() data.stream({}, { chunk_size = 1 }) end, where, "table")
  expect_error(function() data.stream(function() end, { chunk_size = 1 })(0) end, where, "nil")
end)

testing.finish()
