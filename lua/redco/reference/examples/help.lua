--- redco.help.arguments
print(table.concat(redco.help.arguments "nn.linear", " "))  --> train rng

--- redco.help.text
print(redco.help.text "tree.count")
--> redco.tree.count(tree) -> number
--> ...
