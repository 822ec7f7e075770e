--- Tensor
local x = torch.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
print(x.shape, x.dtype, x.device)  --> torch.Size([2, 3])  int64  cpu
print(x[0], x[{ 1, -1 }], x[{ {}, 0 }])
--> tensor([1, 2, 3])  tensor(6)  tensor([1, 4])
print(x:float():mean(1), #x)  --> tensor([2., 5.])  2
x[{ 0, { 1 } }] = 0
print(x)
--> tensor([[1, 0, 0],
-->         [4, 5, 6]])

--- Tensor.T
print(torch.zeros({ 2, 3 }).T.shape)  --> torch.Size([3, 2])

--- Tensor.grad
local w = torch.tensor({ 1, 2 }, { dtype = "float32", requires_grad = true })
print(w.grad)  --> nil
w:square():sum():backward()
print(w.grad)  --> tensor([2., 4.])
w.grad = nil

--- Tensor.shape
local batch, length, size = unpack(torch.zeros({ 2, 5, 8 }).shape)
print(batch, length, size)  --> 2  5  8

--- Tensor:backward
local w = torch.tensor({ 1, 2 }, { dtype = "float32", requires_grad = true })
local y = w * 3
y:sum():backward()
print(w.grad)  --> tensor([3., 3.])
y = w * 3
y:backward(torch.tensor { 1, 10 })  -- adds to the gradient
print(w.grad)  --> tensor([ 6., 33.])

--- Tensor:data_ptr
local x = torch.arange(4, { dtype = "float32" })
local p, sum = x:data_ptr(), 0
for i = 0, x:numel() - 1 do sum = sum + p[i] end
print(sum)  --> 6

--- Tensor:detach
local w = torch.ones({ 2 }, { requires_grad = true })
local y = w * 2
print(y.requires_grad, y:detach().requires_grad)  --> true  false

--- Tensor:full
local deployer = redco.Deployer { seed = 42 }
local x = redco.shard(torch.arange(4), { dp = 0 })
print(x:full())  --> tensor([0, 1, 2, 3])

--- Tensor:item
print(torch.tensor({ 1, 2, 3 }):sum():item() + 1)  --> 7

--- Tensor:placement
local deployer = redco.Deployer { seed = 42 }
local x = redco.shard(torch.zeros { 8, 64 }, { dp = 0 })
local placement = x:placement()
print(placement.dp, placement.mp)  --> replicate  replicate
-- With `redco-lua --nproc 2` it is shard(0), replicate.

--- Tensor:requires_grad_
local w = torch.randn({ 10, 64 }):requires_grad_()
print(w.requires_grad, w:requires_grad_(false).requires_grad)  --> true  false

--- Tensor:size
local x = torch.zeros { 2, 3, 4 }
print(x:size(0), x:size(-1), x:size())  --> 2  4  torch.Size([2, 3, 4])

--- Tensor:stride
local x = torch.zeros { 2, 3, 4 }
print(x:stride(0), table.concat(x:stride(), " "))  --> 12  12 4 1

--- Tensor:to
local x = torch.tensor { 1, 0, 2 }
print(x:to("bool"), x:to("float32").dtype)
--> tensor([ True, False,  True])  float32
local device = torch.cuda.is_available() and "cuda" or "cpu"
print(x:to(device, { dtype = "bfloat16" }).dtype)  --> bfloat16

--- Tensor:to_local
local deployer = redco.Deployer { seed = 42 }
local x = redco.shard(torch.zeros { 8, 64 }, { dp = 0 })
print(x:to_local().shape)  --> torch.Size([8, 64])
-- With `redco-lua --nproc 4` it is torch.Size([2, 64]).

--- Tensor:tolist
local list = torch.tensor({ { 1, 2 }, { 3, 4 } }):tolist()
print(list[2][1])  --> 3
