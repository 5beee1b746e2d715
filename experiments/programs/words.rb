# Counts words of a text that it makes up: strings, arrays and a hash of them. Argument: rounds.
rounds = Integer(ARGV.fetch(0))
state = 1
counts = Hash.new(0)
rounds.times do
  line = Array.new(200) do
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648
    "word#{state % 5000}" * (1 + state % 3)
  end.join(" ")
  line.split.each { |word| counts[word.upcase] += 1 }
  counts.delete_if { |_, count| count > 40 } if counts.size > 4000
end
puts counts.size, counts.values.sum
