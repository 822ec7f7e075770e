--- redco.data
local data = redco.data
local texts = data.lines "captions.txt"
local train, test = data.split(texts, { every = 3 })
print(#texts, #train, #test)  --> 3  2  1
print(test[1])                --> a red heart

--- redco.data.audio
local samples, rate = redco.data.audio "sound.flac"
print(samples.shape, rate)  --> torch.Size([2, 800])  8000
local for_whisper = redco.data.audio("sound.flac", { sampling_rate = 16000 })
print(for_whisper:mean(0).shape)  --> torch.Size([1600])

--- redco.data.concat
local captions = redco.data.lines "captions.txt"  -- 3 lines
local all = redco.data.concat { captions, { "two", "more" } }
print(#all, all[1], all[4])  --> 5  a taxi  two

--- redco.data.conversations
-- chats.jsonl: {"messages": [{"role": "user", "content": "a taxi?"},
--                            {"role": "assistant", "content": "blue"}]}
local tokenizer = redco.Tokenizer.from_pretrained "chat"
local set = redco.data.conversations("chats.jsonl", {
  tokenizer = tokenizer, max_length = 512,
})
local labels = set[1].labels
print(tokenizer:decode(labels[labels:ne(-100)]):sub(2, 5))   --> blue
print(set.statistics.tokens, set.statistics.trained_tokens)  --> 47  11

--- redco.data.csv
-- cities.csv: city,people
--             Rome,2.8
--             "Washington, D.C.",0.7
local cities = redco.data.csv "cities.csv"
print(#cities, cities[2].city, cities[2].people)  --> 2  Washington, D.C.  0.7
local records = redco.data.csv("cities.csv", { header = false })
print(#records, records[1][2])  --> 3  people

--- redco.data.dataset
local squares = redco.data.dataset(1000, function(i)
  return { x = i, y = i ^ 2 }
end)
print(#squares, squares[30].y, squares[1001])  --> 1000  900  nil

--- redco.data.default_collate
local examples = {
  { pixels = torch.zeros { 28, 28 }, label = 3, name = "a.png" },
  { pixels = torch.zeros { 28, 28 }, label = 7, name = "b.png" },
}
local batch = redco.data.default_collate(examples)
print(batch.pixels.shape)  --> torch.Size([2, 28, 28])
print(batch.label, batch.name[2])  --> tensor([3, 7])  b.png

--- redco.data.ctc_tokenizer
local characters = redco.data.ctc_tokenizer {
  vocab = { ["<pad>"] = 0, ["|"] = 1, a = 2, b = 3 },
}
print(#characters.encode "ab a")                       --> 4
print(characters.decode { 2, 2, 0, 2, 3, 1, 1, 3, 0 })  --> aab b

--- redco.data.feature_extractor
local extract = redco.data.feature_extractor { feature_size = 80 }
local sounds = { torch.zeros { 16000 }, torch.zeros { 40000 } }
local input_features, mask = extract(sounds, { sampling_rate = 16000 })
print(input_features.shape)  --> torch.Size([2, 80, 3000])
print(mask:sum(1))           --> tensor([100, 250])

--- redco.data.idx
local labels = redco.data.idx "t10k-labels-idx1-ubyte"
print(labels.shape, labels.dtype)  --> torch.Size([3])  uint8

--- redco.data.image
local pixels = redco.data.image "images/cat/1.png"
print(pixels.shape, pixels.dtype)  --> torch.Size([3, ...])  uint8

--- redco.data.image_folder
-- The files are images/cat/1.png and images/dog/1.jpg.
local images = redco.data.image_folder "images"
print(#images, table.concat(images.classes, " "))  --> 2  cat dog
print(images[2].path, images[2].label)  --> images/dog/1.jpg  1
print(images[2].image.shape)            --> torch.Size([3, 13, 10])

--- redco.data.image_processor
local prepare = redco.data.image_processor {
  image_processor_type = "ViTImageProcessor",
  size = { height = 224, width = 224 },
}
local image = redco.data.image "images/cat/1.png"
local pixel_values = prepare { image }
print(pixel_values.shape, pixel_values.dtype)
--> torch.Size([1, 3, 224, 224])  float32

--- redco.data.json
-- config.json: {"n_layer": 12, "names": ["a", "b"]}
local config = redco.data.json "config.json"
print(config.n_layer, config.names[2])  --> 12  b

--- redco.data.jsonl
-- qa.jsonl: {"q": "2 + 2?", "a": 4}
--           {"q": "1 + 1?", "a": 2}
local examples = redco.data.jsonl "qa.jsonl"
print(#examples, examples[2].q, examples[2].a)  --> 2  1 + 1?  2

--- redco.data.lines
local captions = redco.data.lines "captions.txt"
print(#captions, captions[1])  --> 3  a taxi
local files = redco.data.lines { "captions.txt", "captions.txt" }
print(#files)  --> 6

--- redco.data.loadtxt
-- points.csv: 1,2,3
--             4,5,6
local points = redco.data.loadtxt "points.csv"
print(points.shape, points[1])  --> torch.Size([2, 3])  tensor([4., 5., 6.])

--- redco.data.pack
local sequences = { { 11, 12, 13 }, { 21, 22 }, { 31, 32, 33, 34 } }
local rows = redco.data.pack(sequences, { seq_len = 6 })
print(#rows, rows[1].input_ids)  --> 2  tensor([31, 32, 33, 34, 21, 22])
print(rows[1].labels)        --> tensor([  32,   33,   34, -100,   22, -100])
print(rows[1].segment_ids)   --> tensor([1, 1, 1, 1, 2, 2])
print(rows[1].position_ids)  --> tensor([0, 1, 2, 3, 0, 1])

--- redco.data.padding_collate
local collate_fn = redco.data.padding_collate { pad_token_id = 9 }
local batch = collate_fn {
  { input_ids = { 1, 2, 3 }, labels = { -100, 3, -100 } },
  { input_ids = { 4, 5 }, labels = { 5, -100 } },
}
print(batch.input_ids[1], batch.labels[1])
--> tensor([4, 5, 9])  tensor([   5, -100, -100])
print(batch.attention_mask[1])  --> tensor([1, 1, 0])

--- redco.data.paragraphs
-- book.txt: One paragraph
--           of two lines.
--
--           Another one.
local paragraphs = redco.data.paragraphs "book.txt"
print(#paragraphs, paragraphs[2])  --> 2  Another one.

--- redco.data.preferences
-- pairs.jsonl: {"prompt": "a taxi?", "chosen": "blue",
--               "rejected": "a red heart"}
local tokenizer = redco.Tokenizer.from_pretrained "chat"
local set = redco.data.preferences("pairs.jsonl", {
  tokenizer = tokenizer, max_length = 512,
})
print(tokenizer:decode(set[1].chosen):sub(2, 5))       --> blue
print(set.statistics.too_long, set.statistics.same)    --> 0  0
local batch = redco.preference.collate { set[1] }
print(batch.labels:size(0), batch.labels:size(1))      --> 1  2

--- redco.data.read
local text = redco.data.read "captions.txt"
print(#text, text:sub(1, 6))  --> 30  a taxi

--- redco.data.resample
local samples = torch.randn { 44100 }
print(redco.data.resample(samples, 44100, 16000).shape)
--> torch.Size([16000])

--- redco.data.split
local train, test = redco.data.split({ 1, 2, 3, 4, 5, 6, 7 }, { every = 3 })
print(unpack(train))  --> 1  2  4  5  7
print(unpack(test))   --> 3  6

--- redco.data.tokens
redco.data.write_tokens("train.bin", torch.arange(1000))
local rows = redco.data.tokens("train.bin", { seq_len = 64 })
print(#rows, rows[1].shape)  --> 15  torch.Size([65])
local inputs, labels = rows[2][{ { 0, 64 } }], rows[2][{ { 1, 65 } }]
print(inputs[0], labels[0])  --> tensor(64)  tensor(65)

--- redco.data.write_tokens
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
local ids = tokenizer:encode "some text"
redco.data.write_tokens("train.bin", torch.tensor(ids))

--- Dataset
local captions = redco.data.lines "captions.txt"  -- 3 lines
print(#captions, captions[1], captions[4])  --> 3  a taxi  nil
local lengths = captions:map(function(text) return #text end)
print(unpack(lengths:tolist()))  --> 6  10  11

--- Dataset:ipairs (after Dataset)
for i, caption in captions:ipairs() do print(i, caption) end
--> 1  a taxi
--> 2  a blue car
--> 3  a red heart

--- Dataset:map (after Dataset)
local examples = captions:map(function(text) return { text = text } end)
print(#examples, examples[1].text)  --> 3  a taxi

--- Dataset:place (after Dataset)
print(captions:slice(2):place(1))  --> captions.txt:2

--- Dataset:select (after Dataset)
local some = captions:select { 3, 1 }
print(#some, some[1], some[2])  --> 2  a red heart  a taxi

--- Dataset:slice (after Dataset)
local last_two = captions:slice(2)
print(#last_two, last_two[1])    --> 2  a blue car
print(#captions:slice(1, 2))     --> 2

--- Dataset:tolist (after Dataset)
local list = captions:tolist()
table.sort(list)
print(list[1], #list)  --> a blue car  3

--- redco.data.weighted_sampler
local labels = { 0, 0, 0, 1 }
local weights = { 1 / 3, 1 / 3, 1 / 3, 1 }  -- 1 / examples of the class
local draw = redco.data.weighted_sampler(labels, weights,
  { num_samples = 1000 })
local n_ones = 0
for _, label in draw(0):ipairs() do n_ones = n_ones + label end
print(n_ones > 450 and n_ones < 550)  --> true

--- redco.data.poisson_sampler
local examples = redco.data.dataset(1000, function(i) return i end)
local draw = redco.data.poisson_sampler(examples, { rate = 0.05 })
print(#draw(0) > 20, #draw(1) < 80)  --> true  true

--- redco.data.mixture
local web = redco.data.dataset(10000, function(i) return "web " .. i end)
local books = redco.data.dataset(100, function(i) return "book " .. i end)
local draw = redco.data.mixture({ web, books },
  { weights = { 0.9, 0.1 }, num_samples = 1000 })
print(#draw(0))  --> 1000

--- redco.data.aspect_buckets
for _, size in ipairs(redco.data.aspect_buckets(512)) do
  print(size[1], size[2])
end
--> 384  640
--> 448  576
--> 512  512
--> 576  448
--> 640  384

--- redco.data.bucket_sampler
local pictures = {}  -- or redco.data.image_folder "pictures"
for i = 1, 6 do
  local image = torch.zeros({ 3, 32, 16 * i }, { dtype = "uint8" })
  pictures[i] = { image = image }
end
local epoch = redco.data.bucket_sampler(pictures, {
  buckets = redco.data.aspect_buckets(32, { divisor = 8 }), batch_size = 2,
})
local examples = epoch(0)
print(#examples % 2, examples[1].image.shape == examples[2].image.shape)
--> 0  true

--- redco.data.npy
local matrix = redco.data.npy "matrix.npy"  -- numpy.save("matrix.npy", x)
print(matrix.shape, matrix.dtype)  --> torch.Size([2, 3])  float32

--- redco.data.npz
local arrays = redco.data.npz "arrays.npz"  -- numpy.savez(file, f4=x, ...)
print(arrays.f4.shape)  --> torch.Size([2, 3])

--- redco.data.parquet
local columns = { "image", "label" }
local set = redco.data.parquet("images.parquet", { columns = columns })
local row = set[2]
print(#set, row.image.shape)  --> 3  torch.Size([3, 2, 3])
print(set.features.label.names[row.label + 1])  --> dog

--- redco.data.replay_buffer
local buffer = redco.data.replay_buffer {
  capacity = 10000,
  example = { state = torch.zeros { 4 }, action = torch.tensor(0) },
}
local actions = torch.randint(2, { 32 })
buffer:add { state = torch.randn { 32, 4 }, action = actions }
print(buffer)  --> ReplayBuffer(32 of 10000 rows)

--- ReplayBuffer
local buffer = redco.data.replay_buffer {
  capacity = 3, example = { x = torch.tensor(0) },
}
buffer:add { x = torch.tensor { 1, 2, 3, 4 } }
print(buffer.size, buffer.position, buffer.tensors.x)
--> 3  1  tensor([4, 2, 3])

--- ReplayBuffer:add (after ReplayBuffer)
buffer:add { x = torch.tensor { 5 } }
print(buffer.tensors.x)  --> tensor([4, 5, 3])

--- ReplayBuffer:sample (after ReplayBuffer)
local batch = buffer:sample(16, { generator = redco.Rng(0) })
print(batch.x.shape)  --> torch.Size([16])

--- ReplayBuffer:state_dict (after ReplayBuffer)
torch.save(buffer:state_dict(), "buffer.safetensors")
local state = torch.load "buffer.safetensors"
local restored = redco.data.replay_buffer { state = state }
print(restored)  --> ReplayBuffer(3 of 3 rows)

--- redco.data.tar
-- shard.tar: 1.txt, 1.cls, 2.txt, 2.cls
local set = redco.data.tar "shard.tar"
print(#set, set[2].__key__, set[2].txt, set[2].cls)  --> 2  2  a dog  1

--- redco.data.stream
local function open()  -- an endless stream of numbers
  local i = 0
  return function()
    i = i + 1
    return { x = i }
  end
end
local train_examples = redco.data.stream(open, { chunk_size = 1000 })
print(#train_examples(0), train_examples(1)[1].x)  --> 1000  1001

--- redco.data.make_grid
local grid = redco.data.make_grid(torch.rand { 10, 3, 32, 32 }, { nrow = 5 })
print(grid.shape)  --> torch.Size([3, 70, 172])

--- redco.data.save_image
redco.data.save_image(torch.rand { 3, 32, 32 }, "noise.png",
  { metadata = { Description = "noise" } })
print(redco.data.image("noise.png").shape)  --> torch.Size([3, 32, 32])

--- redco.data.show_image
local image = torch.zeros { 3, 2, 2 }
redco.data.show_image(image, { width = 2, protocol = "blocks" })
