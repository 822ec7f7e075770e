--- redco.help.arguments
print(table.concat(redco.help.arguments "nn.linear", " "))  --> train rng

--- redco.help.search
print(redco.help.search "clip")
--> these mention 'clip':
-->   redco.optim.clip_by_global_norm
--> ...

--- redco.help.text
print(redco.help.text "tree.count")
--> redco.tree.count(tree) -> number
--> ...
