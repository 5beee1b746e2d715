# A burst: 60,000 keys of 100 to 1,100 bytes; then all but one in sixteen are deleted.
redis-cli -p "$1" eval "
  math.randomseed(7)
  for i = 1, 60000 do redis.call('set', 'k' .. i, string.rep('x', math.random(100, 1100))) end
  for i = 1, 60000 do if i % 16 ~= 0 then redis.call('del', 'k' .. i) end end
  return 60000" 0 > /dev/null
