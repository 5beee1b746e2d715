// Parses and writes JSON of many small objects; strings outside of the heap of V8 come from malloc.
// Argument: rounds.
const rounds = Number(process.argv[2]);
let total = 0;
for (let round = 0; round < rounds; round++) {
  const rows = [];
  for (let i = 0; i < 2000; i++) {
    rows.push({ id: i, name: `row-${round}-${i}`, data: Buffer.alloc(64 + (i % 400), i % 256) });
  }
  const text = JSON.stringify(rows.map((row) => ({ ...row, data: row.data.toString("base64") })));
  const bytes = Buffer.from(text);
  total += JSON.parse(bytes.toString()).length + bytes.length;
}
console.log(total);
