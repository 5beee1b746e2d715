-- Builds binary trees of small tables and walks them; one of them lives on. Argument: rounds.
local function tree(depth)
    if depth == 0 then return { name = "leaf" } end
    return { left = tree(depth - 1), right = tree(depth - 1), name = depth .. "/" .. depth % 3 }
end
local function count(node)
    return node.left and 1 + count(node.left) + count(node.right) or 1
end
local kept, total = tree(13), 0
for round = 1, tonumber(arg[1]) do
    total = total + count(tree(4 + 2 * (round % 5)))
    if round % 10 == 0 then kept = { left = kept.right, right = tree(12), name = "kept" } end
end
print(total, count(kept))
