// passes: mpmd-extract-reshards-from-inter-mesh-transfers

// ----- Functions of one mesh are an error
func.func public @main(%p: tensor<4xf32>) attributes {mesh_shape = #sdy.mesh<["d"=2]>} { return }
// error: topology
