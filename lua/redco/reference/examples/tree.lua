--- redco.tree.count
local params = { w = torch.zeros { 3, 4 }, b = torch.zeros(4) }
print(redco.tree.count(params))  --> 16

--- redco.tree.flatten
local batch = { ids = torch.tensor { 5, 6 }, names = { "a", "b" } }
local leaves, structure = redco.tree.flatten(batch)
print(#leaves, leaves[2], leaves[3])  --> 3  a  b
print(redco.tree.unflatten(structure, leaves).ids)  --> tensor([5, 6])

--- redco.tree.leaves
local params = { w = torch.ones(2), b = torch.zeros(1) }
for _, tensor in ipairs(redco.tree.leaves(params)) do print(tensor) end
--> tensor([0.])
--> tensor([1., 1.])

--- redco.tree.map
local params = { w = torch.tensor { 1.5, 2 }, b = torch.tensor(0.5) }
local grads = { w = torch.tensor { 10, 20 }, b = torch.tensor(30) }
local function step(param, grad) return param - 0.1 * grad end
local updated = redco.tree.map(step, params, grads)
print(updated.w, updated.b)  --> tensor([0.5000, 0.0000])  tensor(-2.5000)

--- redco.tree.paths
local params = { layers = { nn.Linear(8, 4), nn.Linear(4, 1) } }
print(table.concat(redco.tree.paths(params), " "))
--> layers.1.bias layers.1.weight layers.2.bias layers.2.weight

--- redco.tree.unflatten
local leaves, structure = redco.tree.flatten { a = 1, b = { 2, 3 } }
local doubled = {}
for i, leaf in ipairs(leaves) do doubled[i] = leaf * 2 end
local tree = redco.tree.unflatten(structure, doubled)
print(tree.a, tree.b[1], tree.b[2])  --> 2  4  6
