-- autocast.lua FOLDER: the models of autocast_peer.py under torch.autocast, with the tensors of
-- FOLDER/tensors.safetensors; writes FOLDER/MODEL_DTYPE.safetensors with the loss and gradients.
local redco = require "redco"

local torch = redco.torch
local folder = arg[1]
local tensors = torch.load(folder .. "/tensors.safetensors")

local function mean_loss(logits, labels) return torch.cross_entropy_loss(logits, labels) end

local models = {}

function models.mlp(p)
  local y = torch.relu(torch.linear(tensors.x, p.w0, p.b0))
  y = torch.gelu(torch.linear(y, p.w1, p.b1))
  return mean_loss(torch.linear(y, p.w2, p.b2), tensors.labels)
end

function models.cnn(p)
  local y = torch.conv2d(tensors.image, p.w0, p.b0, { 1, 1 }, { 1, 1 })
  y = torch.relu(torch.batch_norm(y, p.scale, p.shift, nil, nil, true, 0.1, 1e-5, false))
  y = torch.conv2d(y, p.w1, nil, { 2, 2 }):mean { 2, 3 }
  return mean_loss(torch.linear(y, p.w2), tensors.labels:narrow(0, 0, 4))
end

function models.transformer(p)
  local function norm(x) return torch.layer_norm(x, { 16 }, p.scale, p.shift) end
  local x = torch.embedding(p.table, tensors.tokens)
  local q, k, v = unpack(torch.linear(norm(x), p.qkv):view { 2, 7, 3, 2, 8 }
    :permute { 2, 0, 3, 1, 4 }:unbind(0))
  local y = (q:matmul(k:transpose(-2, -1)) / 8 ^ 0.5):softmax(-1):matmul(v)
  x = x + torch.linear(y:transpose(1, 2):reshape { 2, 7, 16 }, p.out)
  x = x + torch.linear(torch.gelu(torch.linear(norm(x), p.up)), p.down)
  local logits = torch.linear(norm(x), p.table)
  return mean_loss(logits:view { -1, 11 }, tensors.next:view { -1 }) + logits:pow(2):sum() * 1e-3
end

torch.set_num_threads(1)
for name, model in pairs(models) do
  for _, dtype in ipairs { "bfloat16", "float16" } do
    local params = {}
    for path, tensor in pairs(tensors) do
      local own = path:match("^" .. name .. "%.(.*)")
      if own then params[own] = tensor:clone():requires_grad_() end
    end
    local loss = torch.autocast("cpu", { dtype = dtype }, model, params)
    loss:backward()
    torch.save({
      loss = loss:detach():view { 1 },
      grads = redco.tree.map(function(param) return param.grad end, params),
    }, ("%s/%s_%s.safetensors"):format(folder, name, dtype))
  end
end
