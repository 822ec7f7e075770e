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

--- redco.quant.dequantize (after redco.quant)
local floats = redco.quant.dequantize(packed)
print(floats["model.layers.0.mlp.up_proj.weight"].dtype)  --> float32

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
