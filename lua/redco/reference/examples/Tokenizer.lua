--- redco.Tokenizer.from_pretrained
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
print(#tokenizer, tokenizer.eos_token)  --> 768  <|endoftext|>

--- Tokenizer (after redco.Tokenizer.from_pretrained)
tokenizer.pad_token = tokenizer.eos_token
local batch = tokenizer({ "hello", "a red heart" }, { padding = true })
print(batch.input_ids)
--> tensor([[257, 288,  78, 767, 767],
-->         [ 64, 331,  67, 297, 471]])
local ids = tokenizer:encode "a red heart"
print(tokenizer:decode(ids))  --> a red heart

--- Tokenizer:__call (after redco.Tokenizer.from_pretrained)
tokenizer.pad_token = tokenizer.eos_token
local batch = tokenizer({ "hello", "a red heart" }, { padding = "longest" })
print(batch.input_ids.shape)  --> torch.Size([2, 5])
print(batch.attention_mask)
--> tensor([[1, 1, 1, 0, 0],
-->         [1, 1, 1, 1, 1]])

--- Tokenizer:add_special_tokens (after redco.Tokenizer.from_pretrained)
print(tokenizer:add_special_tokens { pad_token = "<|pad|>" })  --> 1
print(tokenizer.pad_token_id, #tokenizer)  --> 768  769

--- Tokenizer:add_tokens (after redco.Tokenizer.from_pretrained)
print(tokenizer:add_tokens { "quark", { content = "XY", lstrip = true } })
--> 2
print(unpack(tokenizer:tokenize "he quark XY"))  --> he  Ġ  quark   XY

--- Tokenizer:apply_chat_template
local tokenizer = redco.Tokenizer.from_pretrained "chat"
local messages = { { role = "user", content = "Hello!" } }
print(tokenizer:apply_chat_template(messages, {
  tokenize = false, add_generation_prompt = true,
}))
--> <|im_start|>user
--> Hello!<|im_end|>
--> <|im_start|>assistant

--- Tokenizer:batch_decode (after redco.Tokenizer.from_pretrained)
local sequences = { tokenizer:encode "hello", tokenizer:encode "a taxi" }
print(unpack(tokenizer:batch_decode(sequences)))  --> hello  a taxi

--- Tokenizer:convert_ids_to_tokens (after redco.Tokenizer.from_pretrained)
print(unpack(tokenizer:convert_ids_to_tokens { 257, 288, 78 }))  --> he  ll  o

--- Tokenizer:convert_tokens_to_ids (after redco.Tokenizer.from_pretrained)
print(tokenizer:convert_tokens_to_ids "<|endoftext|>")  --> 767
print(unpack(tokenizer:convert_tokens_to_ids { "he", "ll", "o" }))
--> 257  288  78

--- Tokenizer:decode (after redco.Tokenizer.from_pretrained)
print(tokenizer:decode { 257, 288, 78, 767 })  --> hello<|endoftext|>
local ids = torch.tensor { 257, 288, 78, 767 }
print(tokenizer:decode(ids, { skip_special_tokens = true }))  --> hello

--- Tokenizer:decode_stream (after redco.Tokenizer.from_pretrained)
local stream = tokenizer:decode_stream { skip_special_tokens = true }
for _, id in ipairs { 257, 288, 78, 767 } do print(stream:step(id)) end
--> he
--> ll
--> o
print(stream:finish())

--- Tokenizer:encode (after redco.Tokenizer.from_pretrained)
print(unpack(tokenizer:encode "hello"))  --> 257  288  78
print(#tokenizer:encode("a red heart", { truncation = true, max_length = 2 }))
--> 2

--- Tokenizer:save_pretrained (after redco.Tokenizer.from_pretrained)
tokenizer:save_pretrained "workdir/model"

--- Tokenizer:tokenize (after redco.Tokenizer.from_pretrained)
print(unpack(tokenizer:tokenize "a red heart"))  --> a  Ġre  d  Ġhe  art

--- DecodeStream:step (after redco.Tokenizer.from_pretrained)
local stream = tokenizer:decode_stream()
local ids = tokenizer:encode "€"  -- three tokens
for _, id in ipairs(ids) do print("'" .. stream:step(id) .. "'") end
--> ''
--> ''
--> '€'
