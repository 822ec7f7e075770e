-- redco.data.pack, and models that see each sequence of a packed row by itself.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function sequence(first, length)
  local ids = {}
  for i = 1, length do ids[i] = first + i end
  return ids
end

local function text(row) return table.concat(row:tolist(), " ") end

test("best fit: each sequence whole in one row, with positions, segments and labels", function()
  local sequences = { sequence(10, 3), sequence(20, 6), sequence(30, 2), sequence(40, 5),
    torch.tensor(sequence(50, 2)) }
  local rows = data.pack(sequences, { seq_len = 8, pad_token_id = 99 })
  expect_equal(#rows, 3)
  expect_equal(text(rows[1].input_ids), "21 22 23 24 25 26 31 32")
  expect_equal(text(rows[1].labels), "22 23 24 25 26 -100 32 -100")
  expect_equal(text(rows[1].position_ids), "0 1 2 3 4 5 0 1")
  expect_equal(text(rows[1].segment_ids), "1 1 1 1 1 1 2 2")
  expect_equal(text(rows[2].input_ids), "41 42 43 44 45 11 12 13")
  expect_equal(text(rows[3].input_ids), "51 52 99 99 99 99 99 99")
  expect_equal(text(rows[3].labels), "52 -100 -100 -100 -100 -100 -100 -100")
  expect_equal(text(rows[3].position_ids), "0 1 0 0 0 0 0 0")
  expect_equal(text(rows[3].segment_ids), "1 1 0 0 0 0 0 0")
  for _, value in pairs(rows[1]) do expect_equal(value.dtype, "int64") end
end)

test("best fit: what is longer than a row is cut; labels that are given are kept", function()
  local rows = data.pack({ sequence(0, 5) }, { seq_len = 2 })
  expect_equal(#rows, 3)
  expect_equal(text(rows[2].input_ids), "3 4")
  expect_equal(text(rows[2].labels), "4 5")
  expect_equal(text(rows[3].labels), "-100 -100")
  rows = data.pack({ { input_ids = { 1, 2, 3 }, labels = { -100, 3, 7 } } }, { seq_len = 4 })
  expect_equal(text(rows[1].labels), "-100 3 7 -100")
  expect_equal(#data.pack({ {} }, { seq_len = 4 }), 0)
end)

test("best fit: nothing is lost, and rows are full", function()
  local generator, sequences, n_tokens = torch.Generator(5), {}, 0
  local lengths = torch.randint(1, 100, { 2000 }, { generator = generator }):tolist()
  for i, length in ipairs(lengths) do
    sequences[i] = torch.full({ length }, i)
    n_tokens = n_tokens + length
  end
  local rows, seen = data.pack(sequences, { seq_len = 128 }), {}
  for _, row in rows:ipairs() do
    local ids, segments = row.input_ids:tolist(), row.segment_ids:tolist()
    for i, id in ipairs(ids) do
      if segments[i] > 0 then seen[id] = (seen[id] or 0) + 1 end
    end
  end
  for i, length in ipairs(lengths) do expect_equal(seen[i], length) end
  local fill = n_tokens / (#rows * 128)
  assert(fill > 0.99, fill)
end)

test("wrapped: one after another, without padding", function()
  local rows = data.pack({ sequence(0, 3), sequence(10, 4), sequence(20, 4) },
    { seq_len = 4, strategy = "wrapped" })
  expect_equal(#rows, 2)
  expect_equal(text(rows[1].input_ids), "1 2 3 11")
  expect_equal(text(rows[1].labels), "2 3 11 12")
  expect_equal(text(rows[2].input_ids), "12 13 14 21")
  expect_equal(text(rows[2].labels), "13 14 21 22")
  expect_equal(rows[1].segment_ids, nil)
end)

test("wrapped: given labels count, in pieces of their sequences", function()
  local rows = data.pack({
    { input_ids = { 1, 2, 3 }, labels = { -100, 3, 9 } }, { 4, 5 },
    { input_ids = { 6, 7, 8, 9 }, labels = { -100, -100, 9, -100 } },
  }, { seq_len = 4, strategy = "wrapped" })
  expect_equal(text(rows[1].labels), "-100 3 9 5")
  expect_equal(text(rows[2].input_ids), "5 6 7 8")
  expect_equal(text(rows[2].labels), "6 -100 -100 9")
end)

test("a row is made when it is asked for", function()
  local asked = 0
  local rows = data.pack(data.dataset(4, function()
    asked = asked + 1
    return { 1, 2 }
  end), { seq_len = 4 })
  expect_equal(asked, 4)  -- for their lengths
  expect_equal(text(rows[2].input_ids), "1 2 1 2")
  expect_equal(asked, 6)
end)

test("what is wrong", function()
  expect_error(function() data.pack({ { 1 } }) end, "pack_spec.lua:", "seq_len")
  expect_error(function() data.pack({ { 1 } }, { seq_len = 2, strategy = "ffd" }) end, '"ffd"')
  expect_error(function() data.pack({ "text" }, { seq_len = 2 }) end, "got \"text\"")
  for _, strategy in ipairs { "bfd", "wrapped" } do
    local rows = data.pack({ { input_ids = { 1, 2, 3 }, labels = { 1 } } },
      { seq_len = 2, strategy = strategy })
    expect_error(function() return rows[1] end, "3 input_ids and 1 labels")
  end
end)

test("default_collate", function()
  local batch = data.default_collate {
    { x = torch.ones { 2 }, n = 1, nested = { yes = true }, text = "a" },
    { x = torch.zeros { 2 }, n = 2, nested = { yes = false }, text = "b" },
  }
  expect_close(batch.x, torch.tensor { { 1, 1 }, { 0, 0 } })
  expect_equal(text(batch.n), "1 2")
  expect_equal(batch.nested.yes.dtype, "bool")
  expect_equal(batch.text[2], "b")
  local function refused(examples, ...)
    expect_error(function() data.default_collate(examples) end, "pack_spec.lua:", ...)
  end
  refused({ { x = torch.ones { 2 } }, { x = torch.ones { 3 } } }, "examples.x of example 2", "[2]")
  refused({ { x = 1 }, { y = 1 } }, "examples.x: example 2")
end)

local configs = {
  { model_type = "gpt2", n_positions = 32, n_embd = 16, n_layer = 2, n_head = 2, vocab_size = 50,
    bos_token_id = 0, eos_token_id = 0, embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0 },
  { model_type = "llama", max_position_embeddings = 32, hidden_size = 16, intermediate_size = 32,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 50 },
  { model_type = "gptj", n_positions = 32, n_embd = 16, n_layer = 2, n_head = 2, rotary_dim = 4,
    vocab_size = 50, bos_token_id = 0, eos_token_id = 0, embd_pdrop = 0, resid_pdrop = 0,
    attn_pdrop = 0 },
  { model_type = "opt", max_position_embeddings = 32, hidden_size = 16, ffn_dim = 32,
    num_hidden_layers = 2, num_attention_heads = 2, vocab_size = 50, word_embed_proj_dim = 16,
    dropout = 0, attention_dropout = 0, pad_token_id = 1 },
  { model_type = "gpt_oss", max_position_embeddings = 32, hidden_size = 16, intermediate_size = 8,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4,
    num_local_experts = 3, num_experts_per_tok = 2, sliding_window = 4, vocab_size = 50 },
  { model_type = "llama4_text", max_position_embeddings = 32, hidden_size = 16, vocab_size = 50,
    intermediate_size = 8, intermediate_size_mlp = 24, num_hidden_layers = 2, head_dim = 4,
    num_attention_heads = 4, num_key_value_heads = 2, num_local_experts = 3, floor_scale = 2,
    interleave_moe_layer_step = 2, attention_chunk_size = 4, no_rope_layer_interval = 2 },
}

for _, config in ipairs(configs) do
  test("the loss and gradients of packed rows are those of separate ones: " .. config.model_type,
    function()
      local model = redco.models.from_config(config, { generator = torch.Generator(1),
        dtype = "float64" })
      local generator, sequences = torch.Generator(2), {}
      for i, length in ipairs { 5, 9, 3, 12, 7, 2, 16 } do
        sequences[i] = torch.randint(2, 50, { length }, { generator = generator })
      end
      local function with_gradients()
        return redco.tree.map(function(p) return p:detach():clone():requires_grad_() end,
          model.params)
      end

      local params, sum, count = with_gradients(), 0, 0
      for _, ids in ipairs(sequences) do
        local n = ids:size(0) - 1
        local loss = model.loss(params, { input_ids = ids:narrow(0, 0, n):unsqueeze(0),
          labels = ids:narrow(0, 1, n):unsqueeze(0) })
        sum, count = sum + loss * n, count + n
      end
      local separate = sum / count
      separate:backward()

      local packed = with_gradients()
      local rows = data.pack(sequences, { seq_len = 16 })
      assert(#rows < #sequences)
      local loss = model.loss(packed, data.default_collate(rows:tolist()))
      expect_close(loss, separate:detach(), 1e-10, 1e-10)
      loss:backward()
      for name, param in pairs(packed) do
        expect_close(param.grad, params[name].grad, 1e-8, 1e-10)
      end
      -- Labels that are the inputs, as for transformers.
      local aligned = {}
      for i, ids in ipairs(sequences) do aligned[i] = { input_ids = ids, labels = ids } end
      rows = data.pack(aligned, { seq_len = 16 })
      assert(#rows < #sequences)
      expect_close(model.loss(packed, data.default_collate(rows:tolist()), { shift = true }),
        separate:detach(), 1e-10, 1e-10)
    end)
end

test("shift: labels of padding on either side do not count", function()
  local model = redco.models.from_config(configs[1], { generator = torch.Generator(1),
    dtype = "float64" })
  local sum, n = 0, 0
  for _, ids in ipairs { { 5, 6, 7, 8, 9 }, { 4, 3, 2 } } do
    ids = torch.tensor { ids }
    local batch = { input_ids = ids, labels = ids }
    local loss, count = model.loss(model.params, batch, { shift = true })
    expect_equal(count:item(), ids:size(1) - 1)
    sum, n = sum + loss * count, n + count
  end
  for _, rows in ipairs {
    { { 4, 3, 2, 0, 0 }, { 1, 1, 1, 0, 0 }, { 0, 1, 2, 2, 2 } },
    { { 0, 0, 4, 3, 2 }, { 0, 0, 1, 1, 1 }, { 0, 0, 0, 1, 2 } },
  } do
    local ids = torch.tensor { { 5, 6, 7, 8, 9 }, rows[1] }
    local loss, count = model.loss(model.params, { input_ids = ids, labels = ids,
      attention_mask = torch.tensor { { 1, 1, 1, 1, 1 }, rows[2] },
      position_ids = torch.tensor { { 0, 1, 2, 3, 4 }, rows[3] } }, { shift = true })
    expect_equal(count:item(), n:item())
    expect_close(loss, sum / n, 1e-10, 1e-10)
  end
  local bert = redco.models.from_pretrained "../cases/bert"
  local ids = torch.tensor { { 1, 2, 3 } }
  expect_error(function()
    bert.loss(bert.params, { input_ids = ids, labels = ids }, { shift = true })
  end, "shift is for decoders")
end)

test("padding inside a row of segments is not seen", function()
  for _, config in ipairs(configs) do
    local model = redco.models.from_config(config, { generator = torch.Generator(1) })
    local ids = torch.tensor { { 9, 9, 3, 4, 5, 6, 7 } }
    local states = model(model.params, { input_ids = ids,
      attention_mask = torch.tensor { { 0, 0, 1, 1, 1, 1, 1 } },
      position_ids = torch.tensor { { 0, 0, 0, 1, 2, 0, 1 } },
      segment_ids = torch.tensor { { 1, 1, 1, 1, 1, 2, 2 } } })
    for _, place in ipairs { { 2, 3 }, { 5, 2 } } do
      local alone = { input_ids = ids:narrow(1, unpack(place)) }
      expect_close(states:narrow(1, unpack(place)), model(model.params, alone), 1e-4, 1e-4)
    end
  end
end)

test("segments without positions, or with a cache, are refused", function()
  local model = redco.models.from_config(configs[1], { generator = torch.Generator(1) })
  local inputs = { input_ids = torch.tensor { { 1, 2 } }, segment_ids = torch.tensor { { 1, 2 } } }
  expect_error(function() model(model.params, inputs) end, "position_ids")
  inputs.position_ids = torch.tensor { { 0, 0 } }
  expect_error(function()
    model(model.params, inputs, { cache = redco.models.new_cache(1) })
  end, "a cache does not support")
end)

testing.finish()
