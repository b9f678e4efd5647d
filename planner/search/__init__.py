"""The search over meshes: takes the problem of each mesh, gives the best choice and a bound over all of them."""
