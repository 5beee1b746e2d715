-- Counts words of a text that it makes up: strings and tables of them. Argument: rounds.
local state, counts, size = 1, {}, 0
for _ = 1, tonumber(arg[1]) do
    local words = {}
    for i = 1, 200 do
        state = (state * 1103515245 + 12345) % 2147483648
        words[i] = ("word" .. state % 5000):rep(1 + state % 3)
    end
    for word in table.concat(words, " "):gmatch("%S+") do
        local key = word:upper()
        if not counts[key] then size = size + 1 end
        counts[key] = (counts[key] or 0) + 1
    end
    if size > 4000 then
        for key, count in pairs(counts) do
            if count > 40 then
                counts[key] = nil
                size = size - 1
            end
        end
    end
end
local sum = 0
for _, count in pairs(counts) do sum = sum + count end
print(size, sum)
