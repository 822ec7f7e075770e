--- redco.quant
local model = redco.models.from_config {
  model_type = "llama", vocab_size = 100, hidden_size = 64,
  intermediate_size = 64, num_hidden_layers = 1, num_attention_heads = 4,
}
local packed = redco.quant.quantize(model.params, {
  type = "nf4", target_modules = { "q_proj", "up_proj", "down_proj" },
})
local params = redco.lora.add(packed, { target_modules = { "q_proj" } })
-- Or a folder: from_pretrained("Qwen3-8B", { quantize = "nf4" })

--- redco.quant.calibrate
local model = redco.models.from_config {
  model_type = "llama", vocab_size = 100, hidden_size = 64,
  intermediate_size = 64, num_hidden_layers = 1, num_attention_heads = 4,
}
local texts = { { 5, 6, 7, 8 }, { 9, 10, 11 } }  -- or texts, and tokenizer
local params, report = redco.quant.calibrate(model, texts, {
  method = "awq", group_size = 64,
})
local layer = report.layers["model.layers.0.mlp.up_proj"]
print(layer.error <= layer.rounding_error)  --> true

--- redco.quant.dequantize (after redco.quant)
local floats = redco.quant.dequantize(packed)
print(floats["model.layers.0.mlp.up_proj.weight"].dtype)  --> float32

--- redco.quant.importance
local texts = { "Once upon a time", "The quick brown fox" }
local gpt2 = redco.models.from_pretrained "gpt2"
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
local inputs = { { input_ids = torch.tensor { { 5, 6, 7 } } } }
local importance = redco.quant.importance(gpt2, inputs)
print(importance["transformer.h.0.attn.c_attn"].shape)
--> torch.Size([48])
importance = redco.quant.importance(gpt2, texts, { tokenizer = tokenizer })

--- redco.quant.save_importance (after redco.quant.importance)
redco.quant.save_importance("workdir/imatrix.gguf", gpt2, importance)

--- redco.quant.load_importance (after redco.quant.save_importance)
local read = redco.quant.load_importance("workdir/imatrix.gguf", gpt2)
print(read["transformer.h.0.attn.c_attn"]:numel())  --> 48

--- redco.quant.quantize
local layer = redco.nn.Linear(64, 32)
local small = redco.quant.quantize({ hidden = layer }, {
  type = "q8_0", target_modules = { "hidden" },
})
print(small.hidden.weight.shape)  --> torch.Size([32, 2, 34])
print(small.hidden.weight_type)   --> q8_0
local y = redco.nn.linear(small.hidden, torch.ones { 5, 64 })
print(y.shape)  --> torch.Size([5, 32])

--- redco.quant.types
for _, type in ipairs(redco.quant.types()) do
  if type.name == "q4_k" then print(type.bits) end  --> 4.5
end
