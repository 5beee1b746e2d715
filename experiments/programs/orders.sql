-- A table of orders in memory: fill, index, join, group, and delete half of it.
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, item TEXT, price REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO customer SELECT i, printf('customer-%d', i), printf('town-%d', i % 97) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
INSERT INTO orders SELECT i, 1 + (i * 7919) % 2000, printf('item-%d', (i * 31) % 500), i % 1000 FROM n;
CREATE INDEX by_customer ON orders (customer, item);
SELECT count(*), sum(length(summary)) FROM (
    SELECT town, group_concat(item, ';') AS summary FROM orders JOIN customer ON customer.id = orders.customer
    GROUP BY town, item);
DELETE FROM orders WHERE id % 2;
SELECT sum(price), count(DISTINCT item) FROM orders;
